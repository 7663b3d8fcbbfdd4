//! Runs a script of scenarios on a real kernel with Soft-RoCE, in a virtual
//! machine, and gives access to what each scenario printed.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

/// One boot for all tests of a file, and one at a time: a machine has few
/// cores, and emulation uses them.
static BOOTS: Mutex<()> = Mutex::new(());

/// What the scenarios of one boot left behind.
#[derive(Debug)]
pub struct Machine {
    out: PathBuf,
}

/// Runs `tests/vm/<script>` once. `None`, with the reason printed, where no
/// such machine can be had; with `ROCE_SNIFF_REQUIRE_VM=1` that is a failure.
pub fn boot(
    cell: &'static OnceLock<Option<Machine>>,
    script: &str,
    timeout: Duration,
) -> Option<&'static Machine> {
    cell.get_or_init(|| {
        let _one_at_a_time = BOOTS.lock().unwrap_or_else(PoisonError::into_inner);
        match try_boot(script, timeout) {
            Ok(machine) => Some(machine),
            Err(reason) if std::env::var("ROCE_SNIFF_REQUIRE_VM").is_ok_and(|v| v == "1") => {
                panic!("{reason}")
            }
            Err(reason) => {
                eprintln!("skipped: {reason}");
                None
            }
        }
    })
    .as_ref()
}

fn try_boot(script: &str, timeout: Duration) -> Result<Machine, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm");
    // Kept after the run: what the machine printed explains a failure.
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(script);
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(&out).map_err(|error| error.to_string())?;
    let log = std::fs::File::create(out.join("console")).map_err(|error| error.to_string())?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    let mut machine = Command::new(here.join("boot.sh"))
        .arg(&out)
        .arg("/bin/bash")
        .arg(here.join(script))
        .arg(env!("CARGO_BIN_EXE_roce-sniff"))
        .arg(&out)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("{}: {error}", here.join("boot.sh").display()))?;
    let deadline = Instant::now() + timeout;
    let status = loop {
        if let Some(status) = machine.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if Instant::now() > deadline {
            let _ = machine.kill();
            let _ = machine.wait();
            panic!("{script}: no end after {timeout:?}, see {}", out.display());
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let console = std::fs::read_to_string(out.join("console")).unwrap_or_default();
    // 77: boot.sh says that this machine cannot.
    if status.code() == Some(77) {
        return Err(console.trim().to_owned());
    }
    assert!(status.success(), "{script}: {status}\n{console}");
    Ok(Machine { out })
}

impl Machine {
    /// Path of a file that a scenario wrote.
    pub fn path(&self, file: &str) -> PathBuf {
        self.out.join(file)
    }

    /// A file that a scenario wrote.
    pub fn text(&self, file: &str) -> String {
        let path = self.path(file);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Exit status of a scenario.
    pub fn status(&self, name: &str) -> i32 {
        let text = self.text(&format!("{name}.status"));
        text.trim().parse().expect("a status")
    }

    /// The JSON document of a scenario that ended with status 0.
    pub fn json(&self, name: &str) -> Value {
        let errors = self.text(&format!("{name}.err"));
        assert_eq!(self.status(name), 0, "{name}: {errors}");
        let text = self.text(&format!("{name}.out"));
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{name}: {error}\n{text}\n{errors}"))
    }

    /// The one line a scenario printed on standard error before it ended with
    /// status 2.
    pub fn refusal(&self, name: &str) -> String {
        let errors = self.text(&format!("{name}.err"));
        assert_eq!(self.status(name), 2, "{name}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{name}: one sentence: {errors}");
        errors.trim().to_owned()
    }
}
