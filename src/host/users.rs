//! Programs that have an RDMA device open.

use std::{fmt, fs};

use super::Host;

/// A process that has an RDMA device open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Number of the process.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

impl Host {
    /// File below `/dev` through which programs use an RDMA device.
    #[must_use]
    pub fn verbs_file(&self, device: &str) -> Option<String> {
        let entries = fs::read_dir(self.path("sys/class/infiniband_verbs")).ok()?;
        let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let file = names.find(|name| {
            self.read(&format!("sys/class/infiniband_verbs/{name}/ibdev"))
                .as_deref()
                == Some(device)
        })?;
        Some(format!("dev/infiniband/{file}"))
    }

    /// Processes that have an RDMA device open, as far as this one may see.
    ///
    /// Removing a Soft-RoCE device, or the network device under it, waits in
    /// the kernel until the last of them has closed it.
    #[must_use]
    pub fn users_of(&self, device: &str) -> Vec<User> {
        let Some(file) = self.verbs_file(device) else {
            return Vec::new();
        };
        let Ok(entries) = fs::read_dir(self.path("proc")) else {
            return Vec::new();
        };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut users: Vec<User> = pids
            .filter(|pid| self.has_open(*pid, &file))
            .map(|pid| User {
                pid,
                name: self.read(&format!("proc/{pid}/comm")).unwrap_or_default(),
            })
            .collect();
        users.sort_by_key(|user| user.pid);
        users
    }

    fn has_open(&self, pid: u32, file: &str) -> bool {
        let Ok(entries) = fs::read_dir(self.path(&format!("proc/{pid}/fd"))) else {
            return false;
        };
        entries.flatten().any(|entry| {
            // By name: in a container the same device is another file.
            fs::read_link(entry.path()).is_ok_and(|target| target.ends_with(file))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::tests::{NoPrograms, Tree};

    #[test]
    fn who_has_it_open() {
        let tree = Tree::new(&[
            ("sys/class/infiniband_verbs/abi_version", "6"),
            ("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0"),
            ("sys/class/infiniband_verbs/uverbs1/ibdev", "rxe1"),
            ("proc/12/comm", "ib_write_bw"),
            ("proc/12/fd/x", ""),
            ("proc/13/comm", "other"),
            ("proc/13/fd/x", ""),
        ]);
        symlink("/dev/infiniband/uverbs1", tree.root().join("proc/12/fd/6")).unwrap();
        symlink("/dev/infiniband/uverbs10", tree.root().join("proc/13/fd/6")).unwrap();
        let host = tree.host(NoPrograms);
        let users: Vec<_> = host
            .users_of("rxe1")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(users, ["ib_write_bw (pid 12)"]);
        assert_eq!(host.users_of("rxe0"), []);
        assert_eq!(host.users_of("rxe9"), []);
    }
}
