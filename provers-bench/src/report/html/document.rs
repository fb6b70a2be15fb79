//! The frame of every page.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// A page with this content, which may have any characters of a process's output. `style` comes after the common one.
pub(super) fn document(title: &str, policy: &str, style: &str, content: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body { main { (content) } }
        }
    }
    .into_string()
    // HTML allows only these control characters.
    .replace(|letter: char| letter.is_control() && !matches!(letter, '\n' | '\t'), "")
}
