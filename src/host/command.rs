//! Programs of the system, run to their end within a time.

use std::{
    env,
    ffi::OsStr,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ran {
    /// Exit status; `None` when a signal ended it.
    pub status: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl Ran {
    /// Whether it ended with status 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status == Some(0)
    }

    /// Its complaint in one line.
    #[must_use]
    pub fn complaint(&self) -> String {
        let lines = self.stderr.lines().chain(self.stdout.lines());
        let lines: Vec<_> = lines.map(str::trim).filter(|l| !l.is_empty()).collect();
        match (lines.as_slice(), self.status) {
            ([], Some(status)) => format!("exit status {status}"),
            ([], None) => "ended by a signal".to_owned(),
            (lines, _) => lines[..lines.len().min(3)].join("; "),
        }
    }
}

/// Why a program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It is not installed.
    #[error("the program {0} is not installed")]
    Missing(String),
    /// It took too long and was ended.
    #[error("{program} did not end within {} s", .after.as_secs())]
    TooLong {
        /// The program.
        program: String,
        /// How long it was given.
        after: Duration,
    },
    /// It could not be started.
    #[error("{program} could not be started: {error}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        error: io::Error,
    },
}

/// Something that runs programs.
pub trait Run: Send + Sync {
    /// Runs a program with arguments to its end.
    ///
    /// # Errors
    /// [`RunError`] unless it ran to its end, with whatever status.
    fn run(&self, program: &str, args: &[&str]) -> Result<Ran, RunError>;

    /// Starts a program with arguments and leaves it to itself.
    ///
    /// # Errors
    /// [`RunError`] when it is not installed or could not be started.
    fn start(&self, program: &str, args: &[&str]) -> Result<(), RunError>;

    /// Where a program is installed.
    fn find(&self, program: &str) -> Option<PathBuf>;
}

/// Runs programs of this machine.
#[derive(Debug, Clone, Copy)]
pub struct Runner {
    /// How long a program may take.
    pub timeout: Duration,
}

impl Default for Runner {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
        }
    }
}

/// Where programs for the administrator are; a user's `PATH` may lack these.
const MORE_PATHS: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"];

/// Output that is kept of one program, in bytes.
const OUTPUT_MAX: u64 = 16 << 20;

impl Run for Runner {
    fn run(&self, program: &str, args: &[&str]) -> Result<Ran, RunError> {
        let start = |error| RunError::Start {
            program: program.to_owned(),
            error,
        };
        let mut child = self
            .command(program, args)?
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(start)?;
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        let deadline = Instant::now() + self.timeout;
        let mut pause = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = child.try_wait().map_err(start)? {
                break status;
            }
            if Instant::now() >= deadline {
                let _ = child.kill();
                // Collects it if it dies at once; one stuck in the kernel
                // does not.
                thread::sleep(Duration::from_millis(20));
                let _ = child.try_wait();
                return Err(RunError::TooLong {
                    program: program.to_owned(),
                    after: self.timeout,
                });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        // What it started in the background may hold the pipes open.
        let text = |channel: mpsc::Receiver<String>| {
            let left = deadline.saturating_duration_since(Instant::now());
            channel
                .recv_timeout(left.min(Duration::from_secs(1)))
                .unwrap_or_default()
        };
        Ok(Ran {
            status: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
        })
    }

    fn start(&self, program: &str, args: &[&str]) -> Result<(), RunError> {
        let mut command = self.command(program, args)?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(_) => Ok(()),
            Err(error) => Err(RunError::Start {
                program: program.to_owned(),
                error,
            }),
        }
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        find_in(&path, program)
    }
}

impl Runner {
    fn command(&self, program: &str, args: &[&str]) -> Result<Command, RunError> {
        let path = self
            .find(program)
            .ok_or_else(|| RunError::Missing(program.to_owned()))?;
        let mut command = Command::new(path);
        command
            .args(args)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            // Ctrl-C must not cut a step in two: it is for us alone.
            .process_group(0);
        Ok(command)
    }
}

fn find_in(path: &OsStr, program: &str) -> Option<PathBuf> {
    env::split_paths(path)
        // A relative entry would let the current directory choose.
        .filter(|directory| directory.is_absolute())
        .chain(MORE_PATHS.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Reads a pipe to its end on a thread of its own, so that a program that
/// prints much on one of two pipes is not stuck.
fn collect(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(mut pipe) = pipe {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.by_ref().take(OUTPUT_MAX).read_to_end(&mut bytes);
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
            let _ = io::copy(&mut pipe, &mut io::sink());
        });
    }
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, timeout: Duration) -> Result<Ran, RunError> {
        Runner { timeout }.run("sh", &["-c", script])
    }

    #[test]
    fn output_and_status() {
        let ran = sh("echo out; echo err >&2; exit 3", Duration::from_secs(20)).unwrap();
        assert_eq!(
            ran,
            Ran {
                status: Some(3),
                stdout: "out\n".into(),
                stderr: "err\n".into()
            }
        );
        assert!(!ran.success());
        assert_eq!(ran.complaint(), "err; out");
        let quiet = sh("exit 1", Duration::from_secs(20)).unwrap();
        assert_eq!(quiet.complaint(), "exit status 1");
    }

    #[test]
    fn more_than_a_pipe_holds() {
        let script = "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero";
        let ran = sh(script, Duration::from_secs(20)).unwrap();
        assert_eq!((ran.stdout.len(), ran.stderr.len()), (300_000, 300_000));
    }

    #[test]
    fn too_long() {
        let begin = Instant::now();
        let error = sh("sleep 60", Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, RunError::TooLong { .. }), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn background_child_keeps_the_pipe() {
        let begin = Instant::now();
        let ran = sh("sleep 30 & exit 0", Duration::from_secs(20)).unwrap();
        assert!(ran.success());
        assert!(begin.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn missing() {
        let error = Runner::default().run("no-such-program", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the program no-such-program is not installed"
        );
        assert_eq!(find_in(OsStr::new("."), "Cargo.toml"), None);
        assert!(find_in(OsStr::new(""), "sh").is_some());
    }
}
