//! Checks the commands in the Markdown files, Makefile.toml and the workflows without running them: every task, package, test, prover,
//! allocator, option, script, variable and file that they name must exist. Skips CHANGELOG.md, which names things that no longer exist.
//! Compares the table of messages with the messages in the code, in both directions, and does the same for the table of reports in
//! docs/preload.md. Checks that the tests and modules named in the table of mutations and in the scripts' filters exist. Checks that the
//! target of every link to a file or heading in this repository exists. Does not follow web links, but rejects links to projects that could
//! be mistaken for this one, such as the crate `zk-alloc` on crates.io.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let names = Names::read();
    let (mut commands, mut broken, mut link_count) = (Vec::new(), Vec::new(), 0);
    for (page, text) in names.0.iter().filter(|(file, _)| file.ends_with(".md")) {
        for (line, target) in targets(text) {
            link_count += 1;
            broken.extend(why_broken(Path::new(page), &target).map(|why| format!("{page}:{line}: {target}: {why}")));
        }
        if page.ends_with("CHANGELOG.md") {
            continue;
        }
        commands.extend(commands_of(text).into_iter().map(|(line, command)| (format!("{page}:{line}"), command)));
        // The Rust blocks in CONTRIBUTING.md must be copies of source code.
        if page == "CONTRIBUTING.md" {
            let flat = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
            let sources = flat(&names.all(is_source));
            let blocks = text.split("```rust\n").skip(1).filter_map(|rest| rest.split("\n```").next());
            let gone = blocks.filter(|block| !sources.contains(&flat(block)));
            broken.extend(gone.map(|block| format!("{page}: no source has {block:?}")));
        }
        // migrating.md also names the variables of other allocators.
        for (index, line) in text.lines().enumerate().filter(|_| !page.ends_with("migrating.md")) {
            let unknown = variables(line).into_iter().filter(|variable| !names.has(is_source, variable));
            broken.extend(unknown.map(|variable| format!("{page}:{}: nothing reads {variable}", index + 1)));
        }
    }
    for (index, line) in names.0["Makefile.toml"].lines().enumerate() {
        let strings: Vec<_> = line.split('"').skip(1).step_by(2).collect();
        let command = match line.split(" = ").next() {
            Some("command") => strings.join(" "),
            Some("args") => format!("cargo {}", strings.join(" ")),
            _ => continue,
        };
        commands.push((format!("Makefile.toml:{}", index + 1), command));
    }
    for (workflow, text) in names.0.iter().filter(|(file, _)| file.starts_with(".github/workflows/")) {
        let steps = text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, line.split_once("run: ")?.1)));
        commands.extend(steps.map(|(line, command)| (format!("{workflow}:{line}"), command.to_owned())));
    }
    for (place, command) in &commands {
        broken.extend(names.faults(command).into_iter().map(|why| format!("{place}: {command}: {why}")));
    }
    broken.extend(names.message_faults("docs/data/messages.md", "| Message |", ""));
    broken.extend(names.message_faults("docs/preload.md", "| output |", "report of "));
    broken.extend(names.test_faults());
    broken.iter().for_each(|line| eprintln!("{line}"));
    println!("{} commands, {link_count} links, {} faults", commands.len(), broken.len());
    if commands.is_empty() || link_count == 0 || !broken.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns whether a file is source code or a script.
fn is_source(file: &str) -> bool {
    file.starts_with(".ci/") || [".rs", ".c", ".cc", ".py", ".sh"].iter().any(|end| file.ends_with(end))
}

/// Returns whether a file is source code of the bench, which defines the options and allocators.
fn is_of_bench(file: &str) -> bool {
    let folders = ["provers-bench/src/", "provers-bench/launch/src/", "zk-alloc/peers/benches/"];
    file.ends_with(".rs") && folders.iter().any(|folder| file.starts_with(folder))
}

/// Returns whether a file is source code of the allocator or of the preload library, which print messages.
fn is_of_allocator(file: &str) -> bool {
    let folders = ["zk-alloc/src/", "integrations/preload/src/"];
    file.ends_with(".rs") && folders.iter().any(|folder| file.starts_with(folder))
}

/// Returns whether a file may contain tests that a filter selects.
fn is_test(file: &str) -> bool {
    is_of_allocator(file) || file.contains("/tests/") && file.ends_with(".rs")
}

/// Returns the commands on a page with their line numbers: the code spans and lines of code blocks that call cargo or a script in `.ci`.
/// Strips trailing comments.
fn commands_of(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line, is_code) in lines(text) {
        if is_code {
            found.push((number, line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span)));
        }
    }
    let commands = found.into_iter().map(|(line, text)| (line, text.split(" #").next().unwrap_or_default().to_owned()));
    let is_command = |text: &str| text.split_whitespace().any(|word| word == "cargo" || word.starts_with(".ci/"));
    commands.filter(|(_, text)| is_command(text)).collect()
}

/// Returns the zk-alloc variables that a line names. Skips names that end in `_`, which are prefixes of several variables.
fn variables(line: &str) -> Vec<&str> {
    let starts = line.match_indices("ZK_ALLOC_").map(|(at, _)| &line[at..]);
    let names = starts.filter_map(|rest| rest.split(|c: char| !c.is_ascii_uppercase() && c != '_').next());
    names.filter(|name| !name.ends_with('_')).collect()
}

/// Splits a message at its variable parts, and returns the fixed text between them. In the code, a variable part is written in braces; in
/// the table, as a word in capitals, `...` or `'y'`.
fn fixed_parts(message: &str) -> Vec<String> {
    let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let message = message.replace("...", "{}").replace("'y'", "{}");
    let outside = |part: &str| part.split_once('}').map_or_else(|| part.to_owned(), |(_, rest)| rest.to_owned());
    let text = message.split('{').map(outside).collect::<Vec<_>>().join("\n");
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

/// The repository's files: maps each path to the file's contents, or to an empty string if it is not a text file.
struct Names(BTreeMap<String, String>);

impl Names {
    fn read() -> Self {
        let listed = Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).output().expect("git runs");
        let listed = String::from_utf8(listed.stdout).expect("names are UTF-8");
        let is_text = |file: &str| is_source(file) || [".md", ".toml", ".yml"].iter().any(|end| file.ends_with(end));
        let content = |file: &str| if is_text(file) { fs::read_to_string(file).expect(file) } else { String::new() };
        let files = listed.lines().filter(|file| fs::metadata(file).is_ok_and(|it| it.is_file()));
        Self(files.map(|file| (file.to_owned(), content(file))).collect())
    }

    /// Returns the contents, joined together, of the files whose paths `is` accepts.
    fn all(&self, is: impl Fn(&str) -> bool) -> String {
        self.0.iter().filter(|(file, _)| is(file)).map(|(_, text)| &**text).collect()
    }

    /// Returns whether `part` occurs in a file whose path `is` accepts.
    fn has(&self, is: impl Fn(&str) -> bool, part: &str) -> bool {
        self.0.iter().any(|(file, text)| is(file) && text.contains(part))
    }

    /// Compares the code's messages with the table on `page` whose first row begins with `head`. Returns one line for each row whose fixed
    /// parts do not occur in the code, and for each message in the code that begins with `start` but has no row.
    fn message_faults(&self, page: &str, head: &str, start: &str) -> Vec<String> {
        // Joins the lines of each string that a trailing backslash continues.
        let joined: String = self.all(is_of_allocator).split("\\\n").map(str::trim_start).collect();
        let joined = joined.replace("\\\"", "'");
        let table =
            self.0[page].lines().skip_while(|line| !line.starts_with(head)).take_while(|line| line.starts_with('|'));
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

    /// Checks the tests named in the last column of the table of mutations and in the scripts' test filters. Returns one line for each name
    /// that no file, module or test of the allocator or of the preload library has, and for each test target that no task runs.
    fn test_faults(&self) -> Vec<String> {
        let is_known = |name: &str| {
            let is_path = |file: &str| file.trim_end_matches(".rs").split('/').any(|part| part == name);
            self.0.keys().any(|file| is_test(file) && is_path(file))
                || [format!("mod {name} {{"), format!("fn {name}(")].iter().any(|item| self.has(is_test, item))
        };
        let page = "docs/data/mutations.md";
        let rows = self.0[page].lines().skip_while(|line| !line.starts_with("|--")).skip(1);
        let mut named = Vec::new();
        for cell in rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next()) {
            let outside: String = cell.split('(').filter_map(|part| part.rsplit(')').next()).collect();
            let words = outside.replace(" and ", ", ");
            // Skips words in backticks, which are commands rather than tests.
            let words = words.split(", ").map(str::trim).filter(|word| !word.starts_with('`'));
            named.extend(words.map(|word| (page, word.to_owned())));
        }
        let mut faults: Vec<_> = named.into_iter().filter(|(_, name)| !is_known(name)).collect();
        // In a filter list, a word that ends in `::` is a module; any other word is part of a test's name.
        for (file, text) in self.0.iter().filter(|(file, _)| file.starts_with(".ci/") && !file.ends_with(".rs")) {
            let starts = [("skipped=(", ')'), ("skipped+=(", ')'), ("set -- ", '\n'), ("--skip ", ' ')];
            let lists = starts
                .into_iter()
                .flat_map(|(start, end)| text.split(start).skip(1).filter_map(move |rest| rest.split(end).next()));
            let words = lists.flat_map(str::split_whitespace).filter(|word| is_name(word.trim_end_matches("::")));
            let unknown = words.filter(|word| match word.strip_suffix("::") {
                Some(module) => !is_known(module),
                None => !self.is_filter(word),
            });
            faults.extend(unknown.map(|word| (file.as_str(), word.to_owned())));
        }
        let faults = faults.iter().map(|(file, name)| format!("{file}: there is no test or module {name}"));
        // `cargo test` runs the targets of the default members. A task must name the targets of the other members.
        let (members, others) = self.0["Cargo.toml"].split_once("default-members").expect("a list in Cargo.toml");
        let default = others.split(']').next().unwrap_or_default();
        let is_left_out = |file: &&String| {
            file.split_once("/tests/").is_some_and(|(package, target)| {
                let package = format!("\"{package}\"");
                let option = format!("\"--test\", \"{}\"", target.trim_end_matches(".rs"));
                target.ends_with(".rs")
                    && !target.contains('/')
                    && members.contains(&package)
                    && !default.contains(&package)
                    && !self.0["Makefile.toml"].contains(&option)
            })
        };
        let left_out = self.0.keys().filter(is_left_out);
        faults.chain(left_out.map(|file| format!("Makefile.toml: no task runs {file}"))).collect()
    }

    /// Returns whether a module or test has `part` in its name. Some tests are defined in a macro, as `name: ...`.
    fn is_filter(&self, part: &str) -> bool {
        let name_of = |line: &str| {
            let item = line.trim_start();
            let item = item.strip_prefix("fn ").or(item.strip_prefix("mod ")).unwrap_or(item);
            item.split(|c: char| !c.is_alphanumeric() && c != '_').next().is_some_and(|name| name.contains(part))
        };
        self.0.iter().any(|(file, text)| is_test(file) && text.lines().any(name_of))
    }

    fn faults(&self, command: &str) -> Vec<String> {
        let words: Vec<&str> =
            command.split_whitespace().map(|word| word.trim_matches(['\'', '"', '(', ')', ',', ';'])).collect();
        let is_script =
            |word: &&&str| word.starts_with(".ci/") || word.ends_with(".sh") && word.starts_with("provers-bench/");
        let scripts = words.iter().filter(is_script).filter(|word| !word.ends_with(".rs"));
        let mut faults: Vec<_> = scripts.filter_map(|script| script_fault(script)).collect();
        let Some(at) = words.iter().position(|word| *word == "cargo") else { return faults };
        // Stops at `--`, which begins the program's own arguments, and at symbols that end the command.
        let words = &words[at + 1..];
        let end = words.iter().position(|word| matches!(*word, "&&" | "|" | ">" | "--")).unwrap_or(words.len());
        let words = &words[..end];
        let is_bench = words.iter().take(2).any(|word| matches!(*word, "prove-bench" | "stress" | "prove-check"));
        for (index, pair) in words.windows(2).enumerate() {
            let name = pair[1];
            let is_there = match pair[0] {
                "make" => self.0["Makefile.toml"].contains(&format!("[tasks.{name}]")),
                "-p" | "--package" => {
                    let name = name.split('@').next().unwrap_or(name);
                    self.has(|file| file.ends_with("Cargo.toml"), &format!("\nname = \"{name}\"\n"))
                }
                "--test" => self.has_target("tests", name),
                // A word after the target is a filter, which must be part of a test's name.
                _ if index > 0 && words[index - 1] == "--test" && is_name(name) => {
                    if !self.is_filter(name) {
                        faults.push(format!("no test has {name} in its name"));
                    }
                    true
                }
                "--bench" => self.has_target("benches", name),
                "--example" => self.has_target("examples", name),
                "prove-bench" => {
                    self.0.keys().any(|file| file.starts_with(&format!("provers-bench/provers/{name}/")))
                        || self.0["provers-bench/launch/src/main.rs"].contains(&format!("\"{name}\""))
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

    /// Returns whether a package has a target with this name. A trailing `*` matches any characters.
    fn has_target(&self, folder: &str, name: &str) -> bool {
        let targets = self.0.keys().filter_map(|file| file.split(&format!("/{folder}/")).nth(1));
        let mut names = targets.filter_map(|target| target.split('/').next()?.split('.').next());
        names.any(|target| name.strip_suffix('*').map_or(target == name, |start| target.starts_with(start)))
    }

    fn arm_fault(&self, arm: &str) -> Option<String> {
        let mut parts = arm.split(':');
        let name = parts.next().filter(|name| is_name(name))?;
        // An arm without settings is named after its allocator, whose binary has this source file.
        let file = format!("provers-bench/arms/with-{name}.rs");
        if !self.has(is_of_bench, &format!("\"{name}\"")) && !self.0.contains_key(&file) {
            return Some(format!("there is no allocator {name}"));
        }
        let mut constants = parts.filter_map(|setting| setting.split('=').next()).filter(|constant| is_name(constant));
        let unknown =
            constants.find(|constant| !self.0["zk-alloc/src/tuning.rs"].contains(&format!("    {constant} =")))?;
        Some(format!("tuning.rs has no constant {unknown}"))
    }

    /// Returns whether the bench has this option, as a field of an arguments struct, a `long` name or a literal `--option`.
    fn is_option(&self, option: &str) -> bool {
        let field = format!("{}: ", option.replace('-', "_"));
        let names = [field, format!("long = \"{option}\""), format!("\"--{option}\"")];
        matches!(option, "help" | "version") || names.iter().any(|name| self.has(is_of_bench, name))
    }
}

/// Returns the reason why a script can't be executed.
fn script_fault(script: &str) -> Option<String> {
    match fs::metadata(script) {
        Err(_) => Some(format!("there is no {script}")),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => Some(format!("{script} is not executable")),
        Ok(_) => None,
    }
}

/// Returns whether a word is a name, and not a placeholder such as NAME, `...` or `$name`.
fn is_name(word: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_@.*".contains(c);
    word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(is_of_names)
}

/// Addresses of other projects that a reader could mistake for this one.
const NOT_OURS: [&str; 3] = ["crates.io/crates/zk-alloc", "docs.rs/zk-alloc", "github.com/zk-alloc"];

/// Returns each line with its number, counted from 1, and whether it is in a code block.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!is_fence).then_some((index + 1, line, in_code))
    })
}

/// Returns the link targets in a text, with their line numbers: `](target)`, `]: target`, `src="target"`, `srcset="target"`.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line, _) in lines(text).filter(|line| !line.2) {
        for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
            let ends = line.match_indices(opening).map(|(at, _)| &line[at + opening.len()..]);
            found.extend(ends.filter_map(|rest| rest.split(closing).next()).map(|target| (number, target.to_owned())));
        }
        if let Some((name, target)) = line.split_once("]: ").filter(|(name, _)| name.starts_with('[')) {
            // Skips sentences that only look like link definitions.
            if !name.contains("](") && !target.contains(' ') {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

fn why_broken(file: &Path, target: &str) -> Option<String> {
    if target.contains("://") {
        return NOT_OURS.iter().find(|page| target.contains(*page)).map(|page| format!("{page} is another project's"));
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let found = if path.is_empty() { file.to_owned() } else { file.parent().unwrap_or(Path::new("")).join(path) };
    let Ok(found) = found.canonicalize() else { return Some("no such file".to_owned()) };
    if !found.starts_with(std::env::current_dir().ok()?) {
        return Some("leads out of the repository".to_owned());
    }
    if heading.is_empty() || found.extension().is_none_or(|extension| extension != "md") {
        return None;
    }
    let text = fs::read_to_string(&found).ok()?;
    (!headings(&text).contains(heading)).then(|| "no such heading".to_owned())
}

/// Returns the anchors that GitHub gives a text's headings: in lower case, with dashes for spaces, and without punctuation.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = lines(text).filter(|line| !line.2 && line.1.starts_with('#'));
    let titles = titles.map(|(_, line, _)| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-"));
    titles.map(|title| title.replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "")).collect()
}
