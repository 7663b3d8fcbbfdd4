//! Tunnels: the header of each, up to what it carries.

use super::{Cursor, Encap, Layer, Next, Path, Reason, Skip, Trace};

const GENEVE_PORT: u16 = 6081;
const VXLAN_PORT: u16 = 4789;
/// What Linux used before the port was assigned, and still defaults to.
const VXLAN_OLD_PORT: u16 = 8472;

const GRE_ERSPAN: u16 = 0x88be;
const GRE_ERSPAN3: u16 = 0x22eb;

/// Records a tunnel, or refuses one too many.
pub(super) fn enter(
    encap: Encap,
    layer: Layer,
    cursor: &Cursor<'_>,
    path: &mut Path,
) -> Result<(), Skip> {
    if path.encaps.push(encap) {
        Ok(())
    } else {
        Err(cursor.skip(Reason::TooDeep, layer))
    }
}

/// The tunnel a UDP port stands for, its header taken.
pub(super) fn udp<T: Trace>(
    port: u16,
    cursor: &mut Cursor<'_>,
    path: &mut Path,
    trace: &mut T,
) -> Result<Next, Skip> {
    match port {
        VXLAN_PORT | VXLAN_OLD_PORT => {
            enter(Encap::Vxlan, Layer::Vxlan, cursor, path)?;
            trace.layer(Layer::Vxlan, cursor.at, 8);
            cursor.take(Layer::Vxlan, 8)?;
            Ok(Next::Ethernet)
        }
        GENEVE_PORT => {
            enter(Encap::Geneve, Layer::Geneve, cursor, path)?;
            let head = cursor.peek(Layer::Geneve, 8)?;
            let len = 8 + usize::from(head[0] & 0x3f) * 4;
            trace.layer(Layer::Geneve, cursor.at, len);
            cursor.take(Layer::Geneve, len)?;
            Ok(Next::EtherType(u16::from_be_bytes([head[2], head[3]])))
        }
        _ => Err(cursor.skip(Reason::OtherPort, Layer::Udp)),
    }
}

/// GRE, and the mirror formats that ride on it.
pub(super) fn gre<T: Trace>(
    cursor: &mut Cursor<'_>,
    path: &mut Path,
    trace: &mut T,
) -> Result<Next, Skip> {
    let start = cursor.at;
    let head = cursor.peek(Layer::Gre, 4)?;
    let flags = u16::from_be_bytes([head[0], head[1]]);
    let protocol = u16::from_be_bytes([head[2], head[3]]);
    // Version 1 is PPTP; source routing (bit 1) was never used.
    if flags & 0x4007 != 0 {
        return Err(cursor.skip(Reason::NotUdp, Layer::Gre));
    }
    let sequence = flags & 0x1000 != 0;
    let optional = [0x8000, 0x2000, 0x1000]
        .iter()
        .filter(|bit| flags & **bit != 0)
        .count();
    let len = 4 + 4 * optional;
    trace.layer(Layer::Gre, start, len);
    cursor.take(Layer::Gre, len)?;
    match protocol {
        // Without a sequence number there is no ERSPAN header: type I.
        GRE_ERSPAN if !sequence => {
            enter(Encap::Erspan1, Layer::Gre, cursor, path)?;
            Ok(Next::Ethernet)
        }
        GRE_ERSPAN => {
            enter(Encap::Erspan2, Layer::Erspan2, cursor, path)?;
            trace.layer(Layer::Erspan2, cursor.at, 8);
            cursor.take(Layer::Erspan2, 8)?;
            Ok(Next::Ethernet)
        }
        GRE_ERSPAN3 => erspan3(cursor, path, trace),
        _ => {
            enter(Encap::Gre, Layer::Gre, cursor, path)?;
            Ok(Next::EtherType(protocol))
        }
    }
}

fn erspan3<T: Trace>(
    cursor: &mut Cursor<'_>,
    path: &mut Path,
    trace: &mut T,
) -> Result<Next, Skip> {
    enter(Encap::Erspan3, Layer::Erspan3, cursor, path)?;
    trace.layer(Layer::Erspan3, cursor.at, 12);
    let head = cursor.take(Layer::Erspan3, 12)?;
    // The last two bytes: P 1, frame type 5, hardware ID 6, direction 1,
    // granularity 2, O 1.
    let frame_type = head[10] >> 2 & 0x1f;
    if head[11] & 1 != 0 {
        trace.layer(Layer::Erspan3Platform, cursor.at, 8);
        cursor.take(Layer::Erspan3Platform, 8)?;
    }
    match frame_type {
        0 => Ok(Next::Ethernet),
        2 => Ok(Next::Ip),
        _ => Err(cursor.skip(Reason::NotIp, Layer::Erspan3)),
    }
}
