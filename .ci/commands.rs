//! Checks the commands in the Markdown files, in Makefile.toml and in the workflow without running them: the tasks, packages, tests,
//! provers, allocators, options, scripts, variables and files that they name exist. CHANGELOG.md is left out: it names what is gone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const WORKFLOW: &str = ".github/workflows/ci.yml";

fn main() -> ExitCode {
    let names = Names::read();
    let pages = listed(&["*.md"]).into_iter().filter(|page| page.is_file() && !page.ends_with("CHANGELOG.md"));
    let (mut commands, mut broken, mut read) = (0, Vec::new(), 0);
    for page in pages {
        read += 1;
        let text = read_to_string(&page);
        for (line, command) in commands_of(&text) {
            commands += 1;
            broken.extend(
                names.faults(&command).into_iter().map(|why| format!("{}:{line}: {command}: {why}", page.display())),
            );
        }
        // The page on other allocators names their variables too.
        for (index, line) in text.lines().enumerate().filter(|_| !page.ends_with("migrating.md")) {
            let unknown = variables(line).into_iter().filter(|variable| !names.sources.contains(variable));
            broken
                .extend(unknown.map(|variable| format!("{}:{}: nothing reads {variable}", page.display(), index + 1)));
        }
    }
    let (tasks, faults) = names.tasks();
    broken.extend(faults);
    let workflow = read_to_string(Path::new(WORKFLOW));
    let steps = workflow.lines().enumerate().filter_map(|(index, line)| Some((index + 1, line.split_once("run: ")?.1)));
    for (line, command) in steps {
        broken.extend(names.faults(command).into_iter().map(|why| format!("{WORKFLOW}:{line}: {command}: {why}")));
    }
    for line in &broken {
        eprintln!("{line}");
    }
    println!("{commands} commands in {read} files, {tasks} tasks, {} faults", broken.len());
    if commands == 0 || tasks == 0 || !broken.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn listed(patterns: &[&str]) -> Vec<PathBuf> {
    let listed =
        Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).args(patterns).output().expect("git runs");
    String::from_utf8(listed.stdout).expect("names are UTF-8").lines().map(PathBuf::from).collect()
}

fn read_to_string(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
            found.push((index + 1, line.to_owned()));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|span| (index + 1, span.to_owned())));
        }
    }
    let is_command = |words: &[&str]| words.iter().any(|word| *word == "cargo" || word.starts_with(".ci/"));
    found.retain_mut(|(_, command)| {
        let end = command.find(" #").unwrap_or(command.len());
        command.truncate(end);
        is_command(&command.split_whitespace().collect::<Vec<_>>())
    });
    found
}

/// The variables of zk-alloc that a line names. A name that ends in `_` stands for several.
fn variables(line: &str) -> Vec<&str> {
    let starts = line.match_indices("ZK_ALLOC_").map(|(at, _)| &line[at..]);
    let names =
        starts.map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len())]);
    names.filter(|name| !name.ends_with('_')).collect()
}

/// What commands may name.
struct Names {
    makefile: String,
    launcher: String,
    /// The sources of the bench, where options and allocators have their names.
    bench: String,
    constants: String,
    /// All sources and scripts.
    sources: String,
    /// Names and folders of the packages.
    packages: Vec<(String, PathBuf)>,
}

impl Names {
    fn read() -> Self {
        let all = |patterns: &[&str]| listed(patterns).iter().map(|path| read_to_string(path)).collect::<String>();
        let name_of = |manifest: &PathBuf| {
            let text = read_to_string(manifest);
            let name = text.split("[package]").nth(1)?.lines().find_map(|line| line.strip_prefix("name = "))?;
            Some((name.trim_matches('"').to_owned(), manifest.parent()?.to_owned()))
        };
        Self {
            makefile: read_to_string(Path::new("Makefile.toml")),
            launcher: read_to_string(Path::new("provers-bench/launch/src/main.rs")),
            bench: all(&["provers-bench/src/*.rs", "provers-bench/launch/src/*.rs", "zk-alloc/peers/benches/*.rs"]),
            constants: read_to_string(Path::new("zk-alloc/src/tuning.rs")),
            sources: all(&["*.rs", "*.c", "*.cc", "*.py", "*.sh", ".ci/*"]),
            packages: listed(&["*Cargo.toml"]).iter().filter_map(name_of).collect(),
        }
    }

    fn faults(&self, command: &str) -> Vec<String> {
        let words: Vec<&str> =
            command.split_whitespace().map(|word| word.trim_matches(['\'', '"', '(', ')', ',', ';'])).collect();
        let mut faults = Vec::new();
        let scripts = words.iter().filter(|word| word.starts_with(".ci/") && !word.ends_with(".rs"));
        faults.extend(scripts.filter_map(|script| script_fault(script)));
        let Some(at) = words.iter().position(|word| *word == "cargo") else { return faults };
        // A program's own arguments follow the dashes, and another command the sign.
        let words = &words[at + 1..];
        let end = words.iter().position(|word| matches!(*word, "&&" | "|" | ">" | "--")).unwrap_or(words.len());
        match &words[..end] {
            ["make", "prove-bench", rest @ ..] | ["prove-bench", rest @ ..] => faults.extend(self.of_bench(rest)),
            ["make", task, ..] if is_name(task) && !self.makefile.contains(&format!("[tasks.{task}]")) => {
                faults.push(format!("Makefile.toml has no task {task}"));
            }
            ["make", "stress" | "prove-check", rest @ ..] => faults.extend(self.of_options(rest)),
            ["test" | "bench" | "run" | "build" | "check" | "clippy" | "doc" | "package", rest @ ..] => {
                faults.extend(self.of_cargo(rest));
            }
            _ => {}
        }
        faults
    }

    /// How many tasks Makefile.toml has, and why some can't start.
    fn tasks(&self) -> (usize, Vec<String>) {
        let tasks = self.makefile.split("\n[tasks.").skip(1).filter_map(|task| task.split_once(']'));
        let mut faults = Vec::new();
        let mut count = 0;
        for (task, text) in tasks {
            count += 1;
            let strings = |key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
                line.map(|line| line.split('"').skip(1).step_by(2).collect::<Vec<_>>())
            };
            let found = match (strings("command").as_deref(), strings("dependencies")) {
                (Some(["cargo"]), _) => {
                    self.faults(&format!("cargo {}", strings("args").unwrap_or_default().join(" ")))
                }
                (Some([program]), _) if program.contains('/') => script_fault(program).into_iter().collect(),
                (Some(_), _) => Vec::new(),
                (None, Some(others)) => {
                    let missing = others.iter().filter(|other| !self.makefile.contains(&format!("[tasks.{other}]")));
                    missing.map(|other| format!("there is no task {other}")).collect()
                }
                (None, None) => vec!["has neither a command nor dependencies".to_owned()],
            };
            faults.extend(found.into_iter().map(|why| format!("Makefile.toml: {task}: {why}")));
        }
        (count, faults)
    }

    /// The words after `cargo test` and its like.
    fn of_cargo(&self, words: &[&str]) -> Vec<String> {
        let mut faults = Vec::new();
        let folder = |name: &str| self.packages.iter().find(|(package, _)| package == name).map(|(_, folder)| folder);
        let mut folders = Vec::new();
        for pair in words.windows(2) {
            match *pair {
                ["-p" | "--package", name] if is_name(name) => match folder(name.split('@').next().unwrap_or(name)) {
                    Some(found) => folders.push(found),
                    None => faults.push(format!("there is no package {name}")),
                },
                _ => {}
            }
        }
        if folders.is_empty() {
            return faults;
        }
        for pair in words.windows(2) {
            let place = match pair[0] {
                "--test" => "tests",
                "--bench" => "benches",
                "--example" => "examples",
                _ => continue,
            };
            let name = pair[1];
            let is_there = folders.iter().any(|folder| has_target(&folder.join(place), name));
            if is_name(name.trim_end_matches('*')) && !is_there {
                faults.push(format!("there is no {place}/{name}"));
            }
        }
        faults
    }

    /// The words after `cargo prove-bench`.
    fn of_bench(&self, words: &[&str]) -> Vec<String> {
        let mut faults = Vec::new();
        if let Some(word) = words.first().filter(|word| is_name(word)) {
            let is_there = Path::new("provers-bench/provers").join(word).is_dir()
                || self.launcher.contains(&format!("\"{word}\""));
            if !is_there {
                faults.push(format!("{word} is neither a prover nor a command of the bench"));
            }
        }
        faults.extend(self.of_options(words));
        for pair in words.windows(2).filter(|pair| pair[0] == "--allocators") {
            for arm in pair[1].split(',').filter(|arm| is_name(arm.split(':').next().unwrap_or(arm))) {
                faults.extend(self.of_arm(arm));
            }
        }
        faults
    }

    fn of_arm(&self, arm: &str) -> Vec<String> {
        let mut parts = arm.split(':');
        let name = parts.next().unwrap_or(arm);
        let mut faults = Vec::new();
        // Plain arms are named like their allocator, whose file has another sign for the dash.
        let is_there = self.bench.contains(&format!("\"{name}\""))
            || Path::new(&format!("provers-bench/arms/with-{name}.rs")).exists();
        if !is_there {
            faults.push(format!("there is no allocator {name}"));
        }
        for constant in parts.filter_map(|setting| setting.split('=').next()) {
            if is_name(constant) && !self.constants.contains(&format!("    {constant} =")) {
                faults.push(format!("tuning.rs has no constant {constant}"));
            }
        }
        faults
    }

    /// Options of the bench are fields of a struct.
    fn of_options(&self, words: &[&str]) -> Vec<String> {
        let options =
            words.iter().filter_map(|word| word.strip_prefix("--")).map(|word| word.split('=').next().unwrap_or(word));
        let is_known = |option: &&str| {
            let field = option.replace('-', "_");
            matches!(*option, "help" | "version")
                || [
                    format!("    {field}:"),
                    format!("{field}: "),
                    format!("long = \"{option}\""),
                    format!("\"--{option}\""),
                ]
                .iter()
                .any(|text| self.bench.contains(text.as_str()))
        };
        options
            .filter(|option| is_name(option) && !is_known(option))
            .map(|option| format!("no option --{option}"))
            .collect()
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

/// Whether a folder has a target of this name; a star stands for the rest of it.
fn has_target(folder: &Path, name: &str) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let file = entry.file_name().into_string().unwrap_or_default();
        let target = file.strip_suffix(".rs").unwrap_or(&file);
        name.strip_suffix('*').map_or(target == name, |start| target.starts_with(start))
    })
}
