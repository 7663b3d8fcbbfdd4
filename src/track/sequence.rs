//! Packet sequence numbers of one sender, without the wrap-around.

/// State of a sequence.
#[derive(Debug, Clone, Default)]
pub struct Sequence;
