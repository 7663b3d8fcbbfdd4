//! The lab, for people.

use std::io::{self, Write};

use comfy_table::CellAlignment;

use super::{
    style::{Kind, Style},
    summary::{put, table},
};
use crate::lab::{Down, EndStatus, Outcome, State, Status, Undone, Up};

/// What is known of the lab, and the command to go on with.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_status(out: &mut impl Write, style: Style, status: &Status) -> io::Result<()> {
    let mut text = Vec::new();
    heading(&mut text, style, words(status.state));
    body(&mut text, style, status);
    out.write_all(&text)
}

/// What setting it up did.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_up(out: &mut impl Write, style: Style, up: &Up) -> io::Result<()> {
    let mut text = Vec::new();
    for undone in &up.cleaned {
        removed(&mut text, style, undone, " that an earlier run had left");
    }
    let words = if up.already {
        "The lab is up already: nothing was done."
    } else {
        words(up.status.state)
    };
    heading(&mut text, style, words);
    body(&mut text, style, &up.status);
    out.write_all(&text)
}

/// What removing it did.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_down(out: &mut impl Write, style: Style, down: &Down) -> io::Result<()> {
    let mut text = Vec::new();
    match down {
        Down::Nothing => text.extend_from_slice(b"No lab is up: nothing to remove.\n"),
        Down::Rebooted => {
            text.extend_from_slice(b"The lab went with the last reboot: nothing to remove.\n");
        }
        Down::Removed(undone) => {
            for undone in undone {
                removed(&mut text, style, undone, "");
            }
            text.extend_from_slice(
                b"The lab is down. The module rdma_rxe stays loaded; it idles without a device.\n",
            );
        }
    }
    out.write_all(&text)
}

fn words(state: State) -> &'static str {
    match state {
        State::Up => "The lab is up.",
        State::Partial => "Only part of the lab is up.",
        State::Down => "No lab is up.",
    }
}

fn heading(text: &mut Vec<u8>, style: Style, words: &str) {
    style.paint(text, Kind::Heading, words.as_bytes());
    text.push(b'\n');
}

fn body(text: &mut Vec<u8>, style: Style, status: &Status) {
    if !status.ends.is_empty() {
        let titles = [
            "device",
            "netdev",
            "address",
            "hardware address",
            "GID index",
            "path MTU",
        ];
        let mut table = table(&titles, None);
        for column in table.column_iter_mut().take(4) {
            column.set_cell_alignment(CellAlignment::Left);
        }
        for end in &status.ends {
            let number = |value: Option<u32>| value.map_or("-".to_owned(), |v| v.to_string());
            table.add_row([
                end.device.clone(),
                end.netdev.clone(),
                end.address.to_string(),
                end.mac.clone(),
                number(end.gid_index.map(u32::from)),
                number(end.path_mtu),
            ]);
        }
        put(text, style, &table);
        for fault in status.ends.iter().flat_map(faults) {
            style.paint(text, Kind::Bad, format!("  {fault}\n").as_bytes());
        }
        text.push(b'\n');
    }
    if status.state == State::Up {
        text.extend_from_slice(
            b"What one device sends the other crosses both netdevs, and is seen there.\n\n",
        );
    }
    command(text, style, "Next", &status.next);
    if status.state == State::Up {
        command(text, style, "Remove", "sudo roce-sniff lab down");
    }
}

/// What an end lacks.
fn faults(end: &EndStatus) -> Vec<String> {
    let mut faults = Vec::new();
    if !end.netdev_present {
        faults.push(format!("{} is missing", end.netdev));
    } else if !end.netdev_up {
        faults.push(format!("{} is down", end.netdev));
    }
    if !end.device_present {
        faults.push(format!("{} is missing", end.device));
    } else if end.gid_index.is_none() {
        faults.push(format!(
            "{} has not the address {}",
            end.device, end.address
        ));
    } else if let Some(state) = end.port_state.as_deref().filter(|s| *s != "ACTIVE") {
        faults.push(format!("the port of {} is {state}", end.device));
    }
    faults
}

fn command(text: &mut Vec<u8>, style: Style, name: &str, command: &str) {
    style.paint(text, Kind::Heading, format!("{name:<7}").as_bytes());
    let _ = writeln!(text, " {command}");
}

fn removed(text: &mut Vec<u8>, style: Style, undone: &Undone, which: &str) {
    let what = &undone.what;
    let (kind, line) = match &undone.outcome {
        Outcome::Removed => (Kind::Plain, format!("removed the {what}{which}\n")),
        Outcome::Absent => return,
        Outcome::LeftAlone(why) => (Kind::Notice, format!("left the {what}: {why}\n")),
        Outcome::Failed(why) => (Kind::Bad, format!("could not remove the {what}: {why}\n")),
    };
    style.paint(text, kind, line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(number: u8) -> EndStatus {
        EndStatus {
            netdev: format!("rs-veth{number}"),
            netdev_present: true,
            netdev_up: true,
            address: format!("10.99.0.{}/24", number + 1).parse().unwrap(),
            mac: format!("02:72:73:00:00:0{number}"),
            device: format!("rs_rxe{number}"),
            device_present: true,
            port_state: Some("ACTIVE".into()),
            gid_index: Some(1),
            path_mtu: Some(1024),
        }
    }

    fn printed(f: impl FnOnce(&mut Vec<u8>, Style) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        f(&mut out, Style::default()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_lab_fits_a_terminal() {
        let up = Up {
            status: Status {
                state: State::Up,
                ends: vec![end(0), end(1)],
                next: "sudo roce-sniff --iface rs-veth0 --write --peer-dev rs_rxe1".into(),
            },
            already: true,
            cleaned: Vec::new(),
        };
        let text = printed(|out, style| print_up(out, style, &up));
        assert_eq!(
            text,
            "\
The lab is up already: nothing was done.

  device   netdev    address       hardware address   GID index  path MTU
  rs_rxe0  rs-veth0  10.99.0.1/24  02:72:73:00:00:00          1      1024
  rs_rxe1  rs-veth1  10.99.0.2/24  02:72:73:00:00:01          1      1024

What one device sends the other crosses both netdevs, and is seen there.

Next    sudo roce-sniff --iface rs-veth0 --write --peer-dev rs_rxe1
Remove  sudo roce-sniff lab down
"
        );
    }

    #[test]
    fn half_a_lab() {
        let mut ends = vec![end(0), end(1)];
        ends[0].netdev_up = false;
        ends[0].port_state = Some("DOWN".into());
        ends[1].device_present = false;
        ends[1].gid_index = None;
        let status = Status {
            state: State::Partial,
            ends,
            next: "sudo roce-sniff lab down".into(),
        };
        assert_eq!(
            printed(|out, style| print_status(out, style, &status)),
            "\
Only part of the lab is up.

  device   netdev    address       hardware address   GID index  path MTU
  rs_rxe0  rs-veth0  10.99.0.1/24  02:72:73:00:00:00          1      1024
  rs_rxe1  rs-veth1  10.99.0.2/24  02:72:73:00:00:01          -      1024
  rs-veth0 is down
  the port of rs_rxe0 is DOWN
  rs_rxe1 is missing

Next    sudo roce-sniff lab down
"
        );
    }

    #[test]
    fn removal() {
        let undone = |what: &str, outcome| Undone {
            what: what.into(),
            outcome,
        };
        let down = Down::Removed(vec![
            undone("a", Outcome::Removed),
            undone("b", Outcome::Absent),
            undone("c", Outcome::LeftAlone("it is yours".into())),
        ]);
        assert_eq!(
            printed(|out, style| print_down(out, style, &down)),
            "removed the a\nleft the c: it is yours\n\
             The lab is down. The module rdma_rxe stays loaded; it idles without a device.\n"
        );
    }
}
