//! The `roce-sniff` command.

fn main() {}
