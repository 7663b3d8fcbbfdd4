//! Captures and dissects RoCEv2: RDMA over UDP port 4791.

pub mod frame;
pub mod layout;
pub mod source;
pub mod wire;
