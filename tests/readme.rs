//! The README shows what the command prints: every example that runs on a
//! fixture is run, and compared line by line.

mod common;

/// Blocks of the README that begin with a command on fixtures: the arguments,
/// and the lines shown below it.
fn examples() -> Vec<(Vec<String>, Vec<String>)> {
    let readme = include_str!("../README.md");
    let mut examples = Vec::new();
    let mut lines = readme.lines().peekable();
    while let Some(line) = lines.next() {
        // Examples that go on into another program are that program's output.
        let Some(command) = line.strip_prefix("$ roce-sniff ") else {
            continue;
        };
        let shown: Vec<String> = std::iter::from_fn(|| {
            lines.next_if(|line| !line.starts_with("```") && !line.starts_with("$ "))
        })
        .map(String::from)
        .collect();
        if command.contains("fixtures/") && !command.contains('|') {
            examples.push((
                command.split_whitespace().map(String::from).collect(),
                shown,
            ));
        }
    }
    examples
}

/// `shown` is `printed`, where a line `…` stands for any number of lines.
fn agrees(shown: &[String], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.iter().all(|line| line.is_empty()),
        Some((line, rest)) if line.trim() == "…" => {
            (0..=printed.len()).any(|skip| agrees(rest, &printed[skip..]))
        }
        Some((line, rest)) => {
            printed.first() == Some(&line.as_str()) && agrees(rest, &printed[1..])
        }
    }
}

#[test]
fn examples_print_what_the_readme_shows() {
    let examples = examples();
    assert!(examples.len() >= 2, "the README has examples to run");
    for (arguments, shown) in examples {
        let ran = common::run(&arguments).ok(&arguments.join(" "));
        let printed: Vec<&str> = ran.stdout.lines().collect();
        assert!(
            agrees(&shown, &printed),
            "roce-sniff {}\nshown:\n{}\nprinted:\n{}",
            arguments.join(" "),
            shown.join("\n"),
            ran.stdout
        );
    }
}
