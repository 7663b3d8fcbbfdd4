//! `doctor` and `lab` as commands: what needs neither root nor RDMA.
#![cfg(target_os = "linux")]

use assert_cmd::Command;

fn roce_sniff(args: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("roce-sniff")
        .unwrap()
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Whatever the machine, its examination is one document, and status 0 unless
/// a failure was asked to be one.
#[test]
fn doctor_as_json() {
    let (status, stdout, stderr) = roce_sniff(&["doctor", "--format", "json"]);
    assert_eq!((status, stderr.as_str()), (0, ""));
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let checks = document["checks"].as_array().unwrap();
    let failed = checks.iter().any(|check| check["status"] == "fail");
    assert_eq!(document["ok"], !failed);
    for check in checks {
        assert!(check["id"].is_string() && check["summary"].is_string());
        let status = check["status"].as_str().unwrap();
        assert!(["ok", "note", "warn", "fail"].contains(&status), "{check}");
    }
}

#[test]
fn doctor_fails_when_asked_to() {
    let args = ["doctor", "--iface", "no-such-netdev", "--quiet"];
    let (status, stdout, _) = roce_sniff(&args);
    assert_eq!(status, 0);
    assert!(
        stdout.contains("there is no network device no-such-netdev"),
        "{stdout}"
    );
    let (status, _, stderr) = roce_sniff(&[args.as_slice(), &["--fail-on", "fail"]].concat());
    assert_eq!((status, stderr.as_str()), (1, ""));
}

/// Commands may be longer: they are there to be copied.
#[test]
fn doctor_fits_the_terminal() {
    let (_, stdout, _) = roce_sniff(&["doctor", "--width", "80", "--verbose"]);
    for line in stdout
        .lines()
        .filter(|line| !line.trim_start().starts_with("$ "))
    {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn what_does_not_exist() {
    for (args, complaint) in [
        (
            ["doctor", "--format", "csv"].as_slice(),
            "doctor has --format table and json",
        ),
        (
            &["lab", "status", "--format", "csv"],
            "lab has --format table and json",
        ),
        (
            &["lab", "up", "--prefix", "no/prefix"],
            "`no/prefix` is no prefix",
        ),
        (
            &["lab", "up", "--addr-a", "10.99.0.9/16"],
            "not two addresses of one network",
        ),
        (
            &["lab", "up", "--addr-a", "10.99.0.9"],
            "is not ADDRESS/PREFIX",
        ),
        (&["lab", "up", "--mtu", "64"], "an MTU of 64 is of no use"),
        (&["doctor", "--to", "somewhere"], "invalid IP address"),
    ] {
        let (status, _, stderr) = roce_sniff(args);
        assert_eq!(status, 2, "{args:?}");
        assert!(stderr.contains(complaint), "{args:?}: {stderr}");
    }
}
