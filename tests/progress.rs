//! The bar that shows how far the reading of large files has come, at the
//! terminal of 80 columns that util-linux's `script` makes.

#![cfg(target_os = "linux")]

mod common;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// What only the bar says.
const BAR: &str = " packets/s, ";

/// A capture file that takes more than a second to read, on any machine.
fn large(dir: &Path) -> PathBuf {
    const LONG: Duration = Duration::from_millis(1600);
    let packets = common::capture("write_1k").pcap();
    let (head, records) = packets.split_at(24);
    let path = dir.join("large.pcap");
    let mut copies = 2000;
    loop {
        let bytes = [head, &records.repeat(copies)].concat();
        std::fs::write(&path, &bytes).unwrap();
        let start = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_roce-sniff"));
        let output = command.args(["flows", "-q"]).arg(&path).output().unwrap();
        assert!(output.status.success());
        let took = start.elapsed();
        if took >= LONG {
            return path;
        }
        let more = LONG.as_secs_f64() / took.as_secs_f64() * 1.15;
        copies = (copies as f64 * more.min(10.0)) as usize;
    }
}

/// Everything that came out at the terminal of a shell; the command is `$T`,
/// the file to read `$F`, one to write `$O`.
fn terminal(file: &Path, line: &str) -> String {
    let output = Command::new("script")
        .args([
            "-qec",
            &format!("stty rows 24 cols 80; {line}"),
            "/dev/null",
        ])
        .env("T", env!("CARGO_BIN_EXE_roce-sniff"))
        .env("F", file)
        .env("O", file.with_extension("out"))
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{line}: {out}");
    out
}

/// The lines that are left on the screen after all of it.
fn screen(out: &str) -> String {
    let (mut lines, mut at) = (vec![Vec::new()], 0);
    let mut chars = out.chars();
    while let Some(c) = chars.next() {
        let line = lines.last_mut().unwrap();
        match c {
            '\r' => at = 0,
            '\n' => {
                lines.push(Vec::new());
                at = 0;
            }
            '\u{1b}' => {
                let sequence: String = (&mut chars)
                    .take_while(|c| !c.is_ascii_alphabetic())
                    .collect();
                // `take_while` has swallowed the letter: only erasing has a 2
                // and no other.
                if sequence == "[2" {
                    line.clear();
                }
            }
            c => {
                line.resize(line.len().max(at + 1), ' ');
                line[at] = c;
                at += 1;
            }
        }
    }
    let lines: Vec<String> = lines.into_iter().map(String::from_iter).collect();
    lines.join("\n")
}

#[test]
fn a_bar_is_there_while_a_large_file_is_read_and_gone_before_the_report() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: no util-linux script");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = large(dir.path());

    let out = terminal(&file, "\"$T\" flows --color never \"$F\"");
    let (bar, _) = out.split_once("frames read").unwrap();
    assert!(bar.contains(BAR) && bar.contains(" s left"), "{out}");
    let drawn = bar.rsplit('\r').find(|drawn| drawn.contains(BAR)).unwrap();
    let drawn = screen(drawn);
    assert!(drawn.trim_end().chars().count() <= 80, "{drawn}");
    let left = screen(&out);
    assert!(!left.contains("packets/s"), "{left}");
    // What is left is what comes out where there is no terminal.
    let plain = common::run(
        &["flows", "--color", "never", "--width", "80"]
            .map(AsRef::as_ref)
            .into_iter()
            .chain([file.as_os_str()])
            .collect::<Vec<_>>(),
    );
    assert_eq!(left.trim_end(), plain.ok("flows").stdout.trim_end());

    // Rows that go elsewhere leave the terminal to the bar.
    let out = terminal(&file, "\"$T\" messages \"$F\" >\"$O\"");
    assert!(out.contains(BAR), "{out}");
    assert_eq!(screen(&out).trim_end(), "");

    for line in [
        "\"$T\" flows -q \"$F\"",
        "\"$T\" flows \"$F\" 2>\"$O\"; cat \"$O\"",
        "\"$T\" messages --limit 5 \"$F\"",
        "cat \"$F\" | \"$T\" flows -",
    ] {
        let out = terminal(&file, line);
        assert!(out.contains("10.0.0.1"), "{line}: {out}");
        assert!(!out.contains("packets/s"), "{line}: {out}");
    }
}
