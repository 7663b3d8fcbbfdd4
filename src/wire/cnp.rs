//! Congestion notification packet (IBTA annex A17.9.3): a BTH with BECN set
//! and sixteen reserved bytes.

use crate::layout::{Field, Show};

/// Where the reserved bytes stand; they carry nothing.
pub const FIELDS: &[Field] = &[Field::new("Reserved", 0, 128, Show::Bytes)];
