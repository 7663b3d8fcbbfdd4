//! A kernel of files: commands change a tree the way the kernel would.

use std::{
    fs, panic,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::host::{Ran, Run, RunError};

/// What happens to the n-th command that is to change something.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Accident {
    /// The program dies before it.
    DeathBefore,
    /// The program dies after it.
    DeathAfter,
    /// The command fails.
    Failure,
}

pub(super) struct Kernel {
    pub(super) root: PathBuf,
    pub(super) accident: Option<(usize, Accident)>,
    /// Changing commands so far.
    pub(super) log: Mutex<Vec<String>>,
    pub(super) missing: Option<&'static str>,
}

pub(super) const DEATH: &str = "killed";

impl Kernel {
    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().into())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten();
        entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn remove(&self, path: &str) {
        fs::remove_dir_all(self.root.join(path)).unwrap();
    }

    fn add_netdev(&self, name: &str, mac: &str, mtu: &str, peer: &str) {
        for (file, text) in [
            ("ifindex", "7"),
            ("mtu", mtu),
            ("address", mac),
            ("flags", "0x1002"),
            ("peer", peer),
        ] {
            self.write(&format!("sys/class/net/{name}/{file}"), text);
        }
        self.write(&format!("proc/sys/net/ipv4/conf/{name}/rp_filter"), "0");
        self.write(&format!("proc/sys/net/ipv4/conf/{name}/accept_local"), "0");
    }

    fn delete_netdev(&self, name: &str) {
        for device in self.names("sys/class/infiniband") {
            let path = format!("sys/class/infiniband/{device}");
            if self.read(&format!("{path}/parent")).as_deref() == Some(name) {
                self.remove(&path);
            }
        }
        self.remove(&format!("sys/class/net/{name}"));
        self.remove(&format!("proc/sys/net/ipv4/conf/{name}"));
    }

    /// Whether the command works.
    fn change(&self, command: &[&str]) -> Result<(), &'static str> {
        let device = |name: &str| format!("sys/class/infiniband/{name}");
        let has = |path: &str| self.root.join(path).exists();
        match *command {
            ["modprobe", "rdma_rxe"] => self.write("sys/module/rdma_rxe/refcnt", "0"),
            [
                "ip",
                "link",
                "add",
                a,
                "address",
                mac_a,
                "mtu",
                mtu,
                "type",
                "veth",
                "peer",
                "name",
                b,
                "address",
                mac_b,
                "mtu",
                _,
            ] => {
                self.add_netdev(a, mac_a, mtu, b);
                self.add_netdev(b, mac_b, mtu, a);
            }
            ["ip", "link", "set", name, "up"] => {
                self.write(&format!("sys/class/net/{name}/flags"), "0x1003");
            }
            ["ip", "link", "delete", name] => {
                let peer = self.read(&format!("sys/class/net/{name}/peer")).unwrap();
                self.delete_netdev(name);
                self.delete_netdev(&peer);
            }
            ["ip", "address", "add", address, "dev", name] => {
                self.write(&format!("sys/class/net/{name}/ip"), address);
            }
            ["ip", "neighbour", "replace", ..] => {}
            ["rdma", "link", "add", name, "type", "rxe", "netdev", netdev] => {
                if has(&device(name)) {
                    return Err("error: File exists");
                }
                let path = device(name);
                self.write(&format!("{path}/parent"), netdev);
                self.write(&format!("{path}/ports/1/state"), "4: ACTIVE");
                let address = self.read(&format!("sys/class/net/{netdev}/ip"));
                let address = address.unwrap_or("192.0.2.1/24".into());
                let (address, _) = address.split_once('/').unwrap();
                self.write(
                    &format!("{path}/ports/1/gids/1"),
                    &format!("::ffff:{address}"),
                );
                self.write(&format!("{path}/ports/1/gid_attrs/types/1"), "RoCE v2");
                self.write(&format!("{path}/ports/1/gid_attrs/ndevs/1"), netdev);
            }
            ["rdma", "link", "delete", name] => self.remove(&device(name)),
            _ => panic!("{command:?}"),
        }
        Ok(())
    }
}

pub(super) struct Handle(pub(super) Arc<Kernel>);

impl Run for Handle {
    fn run(&self, program: &str, args: &[&str]) -> Result<Ran, RunError> {
        let mut ran = Ran {
            status: Some(0),
            ..Ran::default()
        };
        if (program, args) == ("ip", ["-j", "address", "show"].as_slice()) {
            ran.stdout = self.0.read("addresses").unwrap_or("[]".into());
            return Ok(ran);
        }
        let mut log = self.0.log.lock().unwrap_or_else(PoisonError::into_inner);
        let number = log.len();
        log.push(format!("{program} {}", args.join(" ")));
        drop(log);
        let accident = self.0.accident.filter(|(at, _)| *at == number);
        match accident {
            Some((_, Accident::DeathBefore)) => panic::panic_any(DEATH),
            Some((_, Accident::Failure)) => {
                ran.status = Some(2);
                ran.stderr = "no luck\n".into();
                return Ok(ran);
            }
            _ => {}
        }
        let command: Vec<_> = [program].iter().chain(args).copied().collect();
        if let Err(error) = self.0.change(&command) {
            ran.status = Some(1);
            ran.stderr = error.into();
        }
        if accident.is_some() {
            panic::panic_any(DEATH);
        }
        Ok(ran)
    }

    fn start(&self, program: &str, args: &[&str]) -> Result<(), RunError> {
        self.run(program, args).map(|_| ())
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        let there = program != "udevadm" && self.0.missing != Some(program);
        there.then(|| Path::new("/bin").join(program))
    }
}
