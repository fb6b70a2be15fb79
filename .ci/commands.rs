//! Checks the commands in the Markdown files, in Makefile.toml and in the workflows without running them: the tasks, packages, tests,
//! provers, allocators, options, scripts, variables and files that they name exist. CHANGELOG.md is left out: it names what is gone.
//! Checks the table of messages against the messages of the code, and the other way round. Checks what the preload library's page says of
//! its reports in the same way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode};

const WORKFLOWS: &str = ".github/workflows/";

fn main() -> ExitCode {
    let names = Names::read();
    let mut commands = Vec::new();
    let mut broken = Vec::new();
    for page in names.files.iter().filter(|file| file.ends_with(".md") && !file.ends_with("CHANGELOG.md")) {
        let text = read(page);
        commands.extend(commands_of(&text).into_iter().map(|(line, command)| (format!("{page}:{line}"), command)));
        // Its blocks of Rust are copies of the sources.
        if page == "CONTRIBUTING.md" {
            let flat = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
            let sources = flat(&names.sources);
            let blocks = text.split("```rust\n").skip(1).filter_map(|rest| rest.split("\n```").next());
            let gone = blocks.filter(|block| !sources.contains(&flat(block)));
            broken.extend(gone.map(|block| format!("{page}: no source has {block:?}")));
        }
        // The page on other allocators names their variables too.
        for (index, line) in text.lines().enumerate().filter(|_| !page.ends_with("migrating.md")) {
            let unknown = variables(line).into_iter().filter(|variable| !names.sources.contains(variable));
            broken.extend(unknown.map(|variable| format!("{page}:{}: nothing reads {variable}", index + 1)));
        }
    }
    for (index, line) in names.makefile.lines().enumerate() {
        let strings: Vec<_> = line.split('"').skip(1).step_by(2).collect();
        let command = match line.split(" = ").next() {
            Some("command") => strings.join(" "),
            Some("args") => format!("cargo {}", strings.join(" ")),
            _ => continue,
        };
        commands.push((format!("Makefile.toml:{}", index + 1), command));
    }
    for workflow in names.files.iter().filter(|file| file.starts_with(WORKFLOWS)) {
        let text = read(workflow);
        let steps = text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, line.split_once("run: ")?.1)));
        commands.extend(steps.map(|(line, command)| (format!("{workflow}:{line}"), command.to_owned())));
    }
    for (place, command) in &commands {
        broken.extend(names.faults(command).into_iter().map(|why| format!("{place}: {command}: {why}")));
    }
    broken.extend(message_faults("docs/data/messages.md", "| Message |", &names.allocator, ""));
    broken.extend(message_faults("docs/preload.md", "| output |", &names.allocator, "report of "));
    broken.iter().for_each(|line| eprintln!("{line}"));
    println!("{} commands, {} faults", commands.len(), broken.len());
    if commands.is_empty() || !broken.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The commands of a page, with their lines: whole spans of code, and the lines of blocks of code. A comment at the end is no part of
/// one.
fn commands_of(text: &str) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if in_code {
            found.push((index + 1, line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|span| (index + 1, span)));
        }
    }
    let commands = found.into_iter().map(|(line, text)| (line, text.split(" #").next().unwrap_or_default().to_owned()));
    let is_command = |text: &str| text.split_whitespace().any(|word| word == "cargo" || word.starts_with(".ci/"));
    commands.filter(|(_, text)| is_command(text)).collect()
}

/// The variables of zk-alloc that a line names. A name that ends in `_` stands for several.
fn variables(line: &str) -> Vec<&str> {
    let starts = line.match_indices("ZK_ALLOC_").map(|(at, _)| &line[at..]);
    let names = starts.filter_map(|rest| rest.split(|c: char| !c.is_ascii_uppercase() && c != '_').next());
    names.filter(|name| !name.ends_with('_')).collect()
}

/// The differences between the table of messages below `head` and the code: rows whose fixed parts are not in the code, and messages of the
/// code that begin with `start` and have no row.
fn message_faults(page: &str, head: &str, code: &str, start: &str) -> Vec<String> {
    let text = read(page);
    // Strings go on behind a backslash at the end of a line.
    let mut joined = String::new();
    for line in code.lines() {
        let goes_on = joined.ends_with('\\');
        if goes_on {
            joined.pop();
        } else {
            joined.push('\n');
        }
        joined.push_str(if goes_on { line.trim_start() } else { line });
    }
    let joined = joined.replace("\\\"", "'");
    let table = text.lines().skip_while(|line| !line.starts_with(head)).take_while(|line| line.starts_with('|'));
    let cells = table.filter(|line| line.starts_with("| `")).filter_map(|line| line.split(" | ").next());
    let rows: Vec<_> =
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(|row| row.replace('"', "'")).collect();
    let parts: Vec<_> = rows.iter().map(|row| fixed_parts(row)).collect();
    let gone = rows.iter().zip(&parts).filter(|(_, parts)| !parts.iter().all(|part| joined.contains(part)));
    let mut faults: Vec<_> = gone.map(|(row, _)| format!("{page}: no message of the code is {row:?}")).collect();
    let messages = ["warn(", "print_line(", "abort(", "say("].into_iter().flat_map(|call| {
        let rests = joined.split(&format!("{call}format_args!(")).skip(1).collect::<Vec<_>>();
        rests.into_iter().filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
    });
    for message in messages.filter(|message| message.starts_with(start) && !fixed_parts(message).is_empty()) {
        let is_row = |parts: &&Vec<String>| {
            let mut rest = message;
            parts.iter().map(String::len).sum::<usize>() >= 8
                && parts.iter().all(|part| rest.split_once(part.as_str()).map(|(_, after)| rest = after).is_some())
        };
        if !parts.iter().any(|parts| is_row(&parts)) {
            faults.push(format!("{page} has no row for {message:?}"));
        }
    }
    faults
}

/// The parts of a message that stay the same. In the code, what changes stands in braces. In the table, it is a word in capitals, dots, or
/// the value y.
fn fixed_parts(message: &str) -> Vec<String> {
    let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut text = String::new();
    let mut depth = 0_i32;
    for letter in message.replace("...", "{}").replace("'y'", "{}").chars() {
        match letter {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                text.push('\n');
            }
            _ if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    let mut parts = String::new();
    for piece in text.split_inclusive(|letter: char| !is_of_word(letter)) {
        let word = piece.trim_end_matches(|letter: char| !is_of_word(letter));
        let changes = !word.is_empty() && word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
        parts.push_str(if changes { "\n" } else { word });
        parts.push_str(&piece[word.len()..]);
    }
    let parts = parts.split('\n').map(|part| part.trim_matches(|letter: char| !is_of_word(letter)));
    parts.filter(|part| part.len() > 1).map(str::to_owned).collect()
}

/// What commands may name.
struct Names {
    files: Vec<String>,
    makefile: String,
    /// The manifests of all packages.
    manifests: String,
    launcher: String,
    /// The sources of the bench, where options and allocators have their names.
    bench: String,
    constants: String,
    /// The sources of the allocator and of the preload library, where messages are.
    allocator: String,
    /// All sources and scripts.
    sources: String,
}

impl Names {
    fn read() -> Self {
        let listed = Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).output().expect("git runs");
        let listed = String::from_utf8(listed.stdout).expect("names are UTF-8");
        let files: Vec<_> = listed.lines().filter(|file| fs::metadata(file).is_ok_and(|it| it.is_file())).collect();
        let all = |is: &dyn Fn(&str) -> bool| files.iter().filter(|file| is(file)).map(|file| read(file)).collect();
        let of_bench = ["provers-bench/src/", "provers-bench/launch/src/", "zk-alloc/peers/benches/"];
        let of_allocator = ["zk-alloc/src/", "integrations/preload/src/"];
        let source = [".rs", ".c", ".cc", ".py", ".sh"];
        Self {
            makefile: read("Makefile.toml"),
            manifests: all(&|file| file.ends_with("Cargo.toml")),
            launcher: read("provers-bench/launch/src/main.rs"),
            bench: all(&|file| file.ends_with(".rs") && of_bench.iter().any(|folder| file.starts_with(folder))),
            constants: read("zk-alloc/src/tuning.rs"),
            allocator: all(&|file| file.ends_with(".rs") && of_allocator.iter().any(|folder| file.starts_with(folder))),
            sources: all(&|file| file.starts_with(".ci/") || source.iter().any(|end| file.ends_with(end))),
            files: files.into_iter().map(str::to_owned).collect(),
        }
    }

    fn faults(&self, command: &str) -> Vec<String> {
        let words: Vec<&str> =
            command.split_whitespace().map(|word| word.trim_matches(['\'', '"', '(', ')', ',', ';'])).collect();
        let is_script =
            |word: &&&str| word.starts_with(".ci/") || word.ends_with(".sh") && word.starts_with("provers-bench/");
        let scripts = words.iter().filter(is_script).filter(|word| !word.ends_with(".rs"));
        let mut faults: Vec<_> = scripts.filter_map(|script| script_fault(script)).collect();
        let Some(at) = words.iter().position(|word| *word == "cargo") else { return faults };
        // A program's own arguments follow the dashes, and another command the sign.
        let words = &words[at + 1..];
        let end = words.iter().position(|word| matches!(*word, "&&" | "|" | ">" | "--")).unwrap_or(words.len());
        let words = &words[..end];
        let is_bench = words.iter().take(2).any(|word| matches!(*word, "prove-bench" | "stress" | "prove-check"));
        for pair in words.windows(2) {
            let name = pair[1];
            let is_there = match pair[0] {
                "make" => self.makefile.contains(&format!("[tasks.{name}]")),
                "-p" | "--package" => {
                    let name = name.split('@').next().unwrap_or(name);
                    self.manifests.contains(&format!("\nname = \"{name}\"\n"))
                }
                "--test" => self.has_target("tests", name),
                "--bench" => self.has_target("benches", name),
                "--example" => self.has_target("examples", name),
                "prove-bench" => {
                    self.files.iter().any(|file| file.starts_with(&format!("provers-bench/provers/{name}/")))
                        || self.launcher.contains(&format!("\"{name}\""))
                }
                "--allocators" => {
                    faults.extend(name.split(',').filter_map(|arm| self.arm_fault(arm)));
                    true
                }
                _ => true,
            };
            if !is_there && is_name(name.trim_end_matches('*')) {
                faults.push(format!("there is no {} {name}", pair[0].trim_start_matches('-')));
            }
        }
        let options = words.iter().filter_map(|word| word.strip_prefix("--")?.split('=').next());
        let unknown = options.filter(|option| is_bench && is_name(option) && !self.is_option(option));
        faults.extend(unknown.map(|option| format!("no option --{option}")));
        faults
    }

    /// Whether a package has a target of this name; a star stands for the rest of it.
    fn has_target(&self, folder: &str, name: &str) -> bool {
        let targets = self.files.iter().filter_map(|file| file.split(&format!("/{folder}/")).nth(1));
        let mut names = targets.filter_map(|target| target.split('/').next()?.split('.').next());
        names.any(|target| name.strip_suffix('*').map_or(target == name, |start| target.starts_with(start)))
    }

    fn arm_fault(&self, arm: &str) -> Option<String> {
        let mut parts = arm.split(':');
        let name = parts.next().filter(|name| is_name(name))?;
        // Plain arms are named like their allocator, whose file has another sign for the dash.
        let file = format!("provers-bench/arms/with-{name}.rs");
        if !self.bench.contains(&format!("\"{name}\"")) && !self.files.contains(&file) {
            return Some(format!("there is no allocator {name}"));
        }
        let mut constants = parts.filter_map(|setting| setting.split('=').next()).filter(|constant| is_name(constant));
        let unknown = constants.find(|constant| !self.constants.contains(&format!("    {constant} =")))?;
        Some(format!("tuning.rs has no constant {unknown}"))
    }

    /// Options of the bench are fields of a struct.
    fn is_option(&self, option: &str) -> bool {
        let field = format!("{}: ", option.replace('-', "_"));
        let names = [field, format!("long = \"{option}\""), format!("\"--{option}\"")];
        matches!(option, "help" | "version") || names.iter().any(|name| self.bench.contains(name))
    }
}

/// Why a script of the repository can't start.
fn script_fault(script: &str) -> Option<String> {
    match fs::metadata(script) {
        Err(_) => Some(format!("there is no {script}")),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => Some(format!("{script} is not executable")),
        Ok(_) => None,
    }
}

/// Whether a word is a name, and no placeholder such as NAME, `...` or `$name`.
fn is_name(word: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_@.*".contains(c);
    word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(is_of_names)
}
