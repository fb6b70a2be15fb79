//! Lines to paste: a shell command that runs the program under an allocator, and Dockerfile lines that install it.

use super::libraries::{Entrant, OUR_PACKAGE};
use std::ffi::OsString;

/// The command under an allocator, quoted for a shell.
pub(super) fn environment(entrant: &Entrant, command: &[OsString]) -> String {
    let variables = entrant.variables();
    let assigned = variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    assigned.chain([command_line(command)]).collect::<Vec<_>>().join(" ")
}

/// Dockerfile lines that install an allocator. They belong after all commands that need the C library's own allocator.
pub(super) fn dockerfile(entrant: &Entrant) -> Vec<String> {
    let mut lines = Vec::new();
    let file = entrant.file();
    let variables = entrant.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    // No distribution has our package, so the library's file is copied.
    let package = entrant.package.as_ref().filter(|(package, _)| package != OUR_PACKAGE);
    let preload = match (package, file) {
        (Some((package, _)), Some(file)) if is_of_debian() => {
            lines.push(format!(
                "RUN apt-get update && apt-get install -y --no-install-recommends {package} && rm -rf /var/lib/apt/lists/*"
            ));
            Some(file)
        }
        (Some((package, _)), Some(file)) => {
            lines.push(format!("RUN dnf install -y {package} && dnf clean all"));
            Some(file)
        }
        (None, Some(file)) => {
            lines.push(format!("COPY {file} /usr/local/lib/{file}"));
            Some(format!("/usr/local/lib/{file}"))
        }
        (_, None) => None,
    };
    let preload = preload.map(|library| format!("LD_PRELOAD={library}"));
    let words: Vec<_> = preload.into_iter().chain(variables).collect();
    lines.push(format!("ENV {}", words.join(" ")));
    lines
}

fn is_of_debian() -> bool {
    std::path::Path::new("/etc/debian_version").is_file()
}

/// A command, quoted for a shell.
pub(super) fn command_line(command: &[OsString]) -> String {
    command.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// A word, quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::arms::OURS;

    /// An arm named `label`, with a library of that name.
    pub(crate) fn entrant(label: &str) -> Entrant {
        let of_package = label == "jemalloc-tuned";
        Entrant {
            label: label.into(),
            arm: label.into(),
            library: (label != "glibc").then(|| format!("/opt/lib{label}.so.2").into()),
            preloaded: String::new(),
            environment: if of_package { vec![("MALLOC_CONF".into(), "a:b,c:-1".into())] } else { Vec::new() },
            package: None,
            trouble: None,
        }
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        let words = ["a b", "it's", "", "plain-1:2,x", "$HOME"].map(OsString::from);
        assert_eq!(command_line(&words), "'a b' 'it'\\''s' '' plain-1:2,x '$HOME'");
        let tuned = entrant("jemalloc-tuned");
        assert_eq!(dockerfile(&tuned)[1], "ENV LD_PRELOAD=/usr/local/lib/libjemalloc-tuned.so.2 MALLOC_CONF=a:b,c:-1");
    }

    /// `apt-get install` finds no package that was installed from a file. An image built with that line fails.
    #[test]
    fn our_package_is_in_no_archive_so_its_file_is_copied() {
        let packaged = Entrant {
            library: Some("/usr/lib/x86_64-linux-gnu/libzk_alloc.so".into()),
            package: Some((OUR_PACKAGE.into(), "0.1.0".into())),
            ..entrant(OURS)
        };
        let lines =
            ["COPY libzk_alloc.so /usr/local/lib/libzk_alloc.so", "ENV LD_PRELOAD=/usr/local/lib/libzk_alloc.so"];
        assert_eq!(dockerfile(&packaged), lines);
    }
}
