//! Ctrl-C: the first asks for an orderly end, the second ends at once.

use std::sync::{Arc, atomic::AtomicBool};

use anyhow::Context;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

/// Lets the first SIGINT or SIGTERM set `stop`, and a second one end the
/// program.
pub fn sets(stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_default(signal, Arc::clone(stop))
            .and_then(|_| flag::register(signal, Arc::clone(stop)))
            .context("cannot handle signals")?;
    }
    Ok(())
}
