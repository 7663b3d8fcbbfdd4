//! How two hosts tell each other of their queue pairs: a few records over TCP.

/// A responder on another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Where it listens, as `host:port`.
    pub address: String,
    /// Whether to connect the queue pairs through the RDMA connection manager.
    pub cm: bool,
}
