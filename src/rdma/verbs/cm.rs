//! The RDMA connection manager (librdmacm): who finds a peer by its address
//! and has the kernels shake hands over queue pair 1.
//!
//! The queue pairs are this program's own: the manager only carries their
//! numbers, and says by which attributes to move them. So every attribute stays
//! in one place, and the same code drives a queue pair however it was
//! connected.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString},
    mem,
    net::Ipv6Addr,
    ptr::{self, NonNull},
    sync::Arc,
    time::{Duration, Instant},
};

use rdma_sys::{
    ibv_get_device_name, ibv_qp_attr, ibv_qp_state, rdma_accept, rdma_ack_cm_event, rdma_bind_addr,
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_connect,
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_disconnect, rdma_establish, rdma_event_channel, rdma_get_cm_event, rdma_get_src_port,
    rdma_init_qp_attr, rdma_listen, rdma_port_space, rdma_reject, rdma_resolve_addr,
    rdma_resolve_route,
};

use crate::wire::cm::reject_reason;

use super::{
    error::{Facts, Fault, Step, VerbsError},
    qp::Reads,
};

/// How long address, then route resolution may take.
const RESOLVE: Duration = Duration::from_secs(2);
/// How long the peer's manager may take to answer. The kernel itself would go
/// on for a minute.
const ANSWER: Duration = Duration::from_secs(10);
/// Tries after a timeout and after an RNR NAK, as they stand in the REQ; the
/// queue pair's own come from the plan.
const RETRIES: u8 = 6;

/// Where the manager's events come from.
#[derive(Debug)]
struct Events {
    ptr: NonNull<rdma_event_channel>,
}

// SAFETY: the channel is a file descriptor behind a pointer that is owned by
// this value; librdmacm locks what it keeps of its own.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

/// An event, copied out and acknowledged.
struct Event {
    kind: rdma_cm_event_type::Type,
    status: i32,
    /// The new identifier of a request.
    id: *mut rdma_cm_id,
    /// What the peer's program sent along; the manager pads it with zeros.
    private: Vec<u8>,
}

impl Events {
    fn new() -> Result<Arc<Self>, Fault> {
        // SAFETY: no arguments; null says that it failed.
        let channel = unsafe { rdma_create_event_channel() };
        let events = Self {
            ptr: NonNull::new(channel).ok_or_else(|| Fault::last(Step::CmOpen))?,
        };
        // SAFETY: a descriptor of ours.
        if unsafe { libc::fcntl(events.fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
            return Err(Fault::last(Step::CmOpen));
        }
        Ok(Arc::new(events))
    }

    const fn fd(&self) -> i32 {
        // SAFETY: the channel is alive.
        unsafe { self.ptr.as_ref().fd }
    }

    /// The next event, if one comes within `wait`.
    fn next(&self, step: Step, wait: Duration) -> Result<Option<Event>, Fault> {
        let deadline = Instant::now() + wait;
        loop {
            let mut event: *mut rdma_cm_event = ptr::null_mut();
            // SAFETY: the channel is alive, `event` outlives the call.
            if unsafe { rdma_get_cm_event(self.ptr.as_ptr(), &raw mut event) } == 0 {
                // SAFETY: a valid event until it is acknowledged, which
                // happens in there.
                return Ok(Some(unsafe { taken(event) }));
            }
            let fault = Fault::last(step);
            if ![libc::EAGAIN, libc::EINTR].contains(&fault.errno) {
                return Err(fault);
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            let mut poll = libc::pollfd {
                fd: self.fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            let millis = i32::try_from(rest.as_millis()).unwrap_or(i32::MAX).max(1);
            // SAFETY: one entry, and it outlives the call. Whatever it says,
            // the loop looks again and keeps to its deadline.
            unsafe { libc::poll(&raw mut poll, 1, millis) };
        }
    }
}

/// Copies an event and acknowledges it: an identifier cannot be destroyed
/// before.
///
/// # Safety
/// `event` must come from `rdma_get_cm_event` and not be acknowledged yet.
unsafe fn taken(event: *mut rdma_cm_event) -> Event {
    // SAFETY: valid, as the caller promises.
    let (kind, status, id) = unsafe { ((*event).event, (*event).status, (*event).id) };
    // Only these events carry parameters of a connection.
    let private = if [
        rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST,
        rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE,
        rdma_cm_event_type::RDMA_CM_EVENT_REJECTED,
    ]
    .contains(&kind)
    {
        // SAFETY: the union holds the parameters of a connection, as the
        // identifiers are for connected queue pairs; both fields are plain.
        let (data, len) = unsafe {
            let conn = &(*event).param.conn;
            (conn.private_data.cast::<u8>(), conn.private_data_len)
        };
        if data.is_null() {
            Vec::new()
        } else {
            // SAFETY: as many bytes within the event.
            unsafe { std::slice::from_raw_parts(data, usize::from(len)) }.to_vec()
        }
    } else {
        Vec::new()
    };
    // SAFETY: acknowledged once, and not looked at any more.
    unsafe { rdma_ack_cm_event(event) };
    Event {
        kind,
        status,
        id,
        private,
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: identifiers on the channel hold an `Arc` to it and are gone.
        unsafe { rdma_destroy_event_channel(self.ptr.as_ptr()) };
    }
}

/// An identifier: a listener, or one side of a connection.
#[derive(Debug)]
struct Id {
    ptr: NonNull<rdma_cm_id>,
    events: Arc<Events>,
}

// SAFETY: as for `Events`.
unsafe impl Send for Id {}
// SAFETY: as for `Events`.
unsafe impl Sync for Id {}

impl Id {
    fn new() -> Result<Self, Fault> {
        let events = Events::new()?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel is alive, `id` outlives the call.
        let returned = unsafe {
            rdma_create_id(
                events.ptr.as_ptr(),
                &raw mut id,
                ptr::null_mut(),
                rdma_port_space::RDMA_PS_TCP,
            )
        };
        Fault::check(Step::CmOpen, returned)?;
        Ok(Self {
            ptr: NonNull::new(id).ok_or_else(|| Fault::last(Step::CmOpen))?,
            events,
        })
    }

    /// Attributes for a move to `state`, as the handshake found them, with
    /// the mask that says which they are.
    fn attributes(
        &self,
        step: Step,
        state: ibv_qp_state::Type,
    ) -> Result<(ibv_qp_attr, i32), Fault> {
        // SAFETY: integers and unions of integers, for which zero is a value.
        let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
        attr.qp_state = state;
        let mut mask = 0;
        // SAFETY: the identifier is alive, both places outlive the call.
        let returned =
            unsafe { rdma_init_qp_attr(self.ptr.as_ptr(), &raw mut attr, &raw mut mask) };
        Fault::check(step, returned)?;
        Ok((attr, mask))
    }

    /// Name and port of the device that the manager chose; `None` before it
    /// did.
    fn device(&self) -> Option<(String, u8)> {
        // SAFETY: the identifier is alive; an open device of the manager's
        // stays open.
        unsafe {
            let id = self.ptr.as_ref();
            if id.verbs.is_null() {
                return None;
            }
            let name = CStr::from_ptr(ibv_get_device_name((*id.verbs).device));
            Some((name.to_string_lossy().into_owned(), id.port_num))
        }
    }

    /// Refuses another device than the plan's: its memory and queue pairs are
    /// no good there.
    fn check_device(&self, facts: &Facts) -> Result<(), VerbsError> {
        match self.device() {
            Some((name, port)) if name != facts.device || port != facts.port => {
                Err(VerbsError::refused(
                    &facts.device,
                    Step::CmResolve,
                    format!(
                        "the connection manager takes {name} port {port} for this address, \
                         not {} port {}: name that device instead",
                        facts.device, facts.port
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Waits for an event of kind `wanted`; anything else is the failure it
    /// says it is.
    fn expect(
        &self,
        wanted: rdma_cm_event_type::Type,
        step: Step,
        wait: Duration,
        facts: &Facts,
    ) -> Result<Vec<u8>, VerbsError> {
        let event = self
            .events
            .next(step, wait)
            .map_err(|fault| fault.explain(facts))?;
        let silent = Fault {
            step,
            errno: libc::ETIMEDOUT,
        };
        let Some(event) = event else {
            return Err(silent.explain(facts));
        };
        if event.kind == wanted && event.status == 0 {
            return Ok(event.private);
        }
        if event.kind == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED {
            let words = u16::try_from(event.status).ok().and_then(reject_reason);
            return Err(VerbsError::refused(
                &facts.device,
                step,
                format!(
                    "the peer's connection manager rejected the connection: {} (reason {})",
                    words.unwrap_or("unknown reason"),
                    event.status
                ),
            ));
        }
        // The status of other failures is a negated error number.
        if event.status < 0 {
            let errno = event.status.saturating_neg();
            return Err(Fault { step, errno }.explain(facts));
        }
        Err(VerbsError::refused(
            &facts.device,
            step,
            format!("the connection manager reported event {}", event.kind),
        ))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: every event of it was acknowledged, and nobody else knows
        // the pointer.
        unsafe { rdma_destroy_id(self.ptr.as_ptr()) };
    }
}

/// One side of a connection; hangs up when dropped.
#[derive(Debug)]
pub(super) struct Link {
    id: Id,
    /// Whether the other side has to be told of the end.
    connected: bool,
}

impl Link {
    /// Finds the way from the plan's address to `port` of the destination.
    pub fn resolve(facts: &Facts, port: u16) -> Result<Self, VerbsError> {
        let explain = |fault: Fault| fault.explain(facts);
        let id = Id::new().map_err(explain)?;
        let mut from = Address::new(facts.gid, 0, facts);
        let mut to = Address::new(facts.dest, port, facts);
        let millis = RESOLVE.as_millis() as i32;
        // SAFETY: the identifier is alive, both addresses outlive the call.
        let returned =
            unsafe { rdma_resolve_addr(id.ptr.as_ptr(), from.as_ptr(), to.as_ptr(), millis) };
        Fault::check(Step::CmResolve, returned).map_err(explain)?;
        let wait = RESOLVE * 2;
        let resolved = rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED;
        id.expect(resolved, Step::CmResolve, wait, facts)?;
        id.check_device(facts)?;
        // SAFETY: the identifier is alive.
        let returned = unsafe { rdma_resolve_route(id.ptr.as_ptr(), millis) };
        Fault::check(Step::CmResolve, returned).map_err(explain)?;
        let resolved = rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED;
        id.expect(resolved, Step::CmResolve, wait, facts)?;
        Ok(Self {
            id,
            connected: false,
        })
    }

    /// Asks for a connection to queue pair `qpn`; returns what the peer sent
    /// along with its reply.
    pub fn request(
        &mut self,
        qpn: u32,
        reads: Reads,
        private: &[u8],
        facts: &Facts,
    ) -> Result<Vec<u8>, VerbsError> {
        let mut param = parameters(qpn, reads, private);
        // SAFETY: the identifier is alive; the parameters and what they point
        // to outlive the call, which copies them.
        let returned = unsafe { rdma_connect(self.id.ptr.as_ptr(), &raw mut param) };
        Fault::check(Step::CmConnect, returned).map_err(|fault| fault.explain(facts))?;
        let answered = rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE;
        let private = self.id.expect(answered, Step::CmConnect, ANSWER, facts)?;
        self.connected = true;
        Ok(private)
    }

    /// Says that this side is ready to send, too.
    pub fn establish(&self) -> Result<(), Fault> {
        // SAFETY: the identifier is alive.
        Fault::check(Step::CmConnect, unsafe {
            rdma_establish(self.id.ptr.as_ptr())
        })
    }

    /// See [`Id::attributes`].
    pub fn attributes(
        &self,
        step: Step,
        state: ibv_qp_state::Type,
    ) -> Result<(ibv_qp_attr, i32), Fault> {
        self.id.attributes(step, state)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.connected {
            // SAFETY: the identifier is alive. Where the peer was faster, the
            // call fails, and nothing is lost.
            unsafe { rdma_disconnect(self.id.ptr.as_ptr()) };
        }
    }
}

/// Waits for requests at an address of a device.
#[derive(Debug)]
pub(super) struct Listening {
    id: Id,
    /// Port of the manager's, in no relation to those of TCP and UDP.
    pub port: u16,
}

impl Listening {
    /// Listens at the address of the GID, on a free port.
    pub fn open(facts: &Facts) -> Result<Self, VerbsError> {
        let explain = |fault: Fault| fault.explain(facts);
        let id = Id::new().map_err(explain)?;
        let mut at = Address::new(facts.gid, 0, facts);
        // SAFETY: the identifier is alive, the address outlives the call.
        let returned = unsafe { rdma_bind_addr(id.ptr.as_ptr(), at.as_ptr()) };
        Fault::check(Step::CmListen, returned).map_err(explain)?;
        // SAFETY: the identifier is alive.
        let returned = unsafe { rdma_listen(id.ptr.as_ptr(), 8) };
        Fault::check(Step::CmListen, returned).map_err(explain)?;
        id.check_device(facts)?;
        // SAFETY: the identifier is alive.
        let port = u16::from_be(unsafe { rdma_get_src_port(id.ptr.as_ptr()) });
        Ok(Self { id, port })
    }

    /// The next request, if one comes within `wait`.
    pub fn poll(&self, wait: Duration) -> Result<Option<Request>, Fault> {
        let Some(event) = self.id.events.next(Step::CmListen, wait)? else {
            return Ok(None);
        };
        if event.kind != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
            return Ok(None);
        }
        Ok(NonNull::new(event.id).map(|ptr| Request {
            link: Link {
                // From now on it is ours, its events come where those of the
                // listener come.
                id: Id {
                    ptr,
                    events: Arc::clone(&self.id.events),
                },
                connected: false,
            },
            private: event.private,
        }))
    }
}

/// Somebody asks for a connection.
#[derive(Debug)]
pub(super) struct Request {
    pub link: Link,
    /// What was sent along.
    pub private: Vec<u8>,
}

impl Request {
    /// Declines.
    pub fn reject(self) {
        // SAFETY: the identifier is alive; nothing is sent along.
        unsafe { rdma_reject(self.link.id.ptr.as_ptr(), ptr::null(), 0) };
    }

    /// Accepts for queue pair `qpn`, and waits until the peer knows.
    pub fn accept(
        mut self,
        qpn: u32,
        reads: Reads,
        private: &[u8],
        facts: &Facts,
    ) -> Result<Link, VerbsError> {
        let mut param = parameters(qpn, reads, private);
        // SAFETY: as in `Link::request`.
        let returned = unsafe { rdma_accept(self.link.id.ptr.as_ptr(), &raw mut param) };
        Fault::check(Step::CmConnect, returned).map_err(|fault| fault.explain(facts))?;
        self.link.connected = true;
        let established = rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED;
        self.link
            .id
            .expect(established, Step::CmConnect, ANSWER, facts)?;
        Ok(self.link)
    }
}

/// What the two managers tell each other of a queue pair.
fn parameters(qpn: u32, reads: Reads, private: &[u8]) -> rdma_conn_param {
    // SAFETY: integers and a pointer, for which zero is a value.
    let mut param: rdma_conn_param = unsafe { mem::zeroed() };
    param.private_data = private.as_ptr().cast();
    // The callers' data are a few bytes; more than the field can say would be
    // cut, not overrun.
    param.private_data_len = u8::try_from(private.len()).unwrap_or(u8::MAX);
    param.responder_resources = reads.served;
    param.initiator_depth = reads.issued;
    param.retry_count = RETRIES;
    param.rnr_retry_count = RETRIES;
    param.qp_num = qpn;
    param
}

/// A socket address.
struct Address {
    storage: libc::sockaddr_storage,
}

impl Address {
    fn new(gid: Option<Ipv6Addr>, port: u16, facts: &Facts) -> Self {
        // SAFETY: integers only, for which zero is a value.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let gid = gid.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let place = &raw mut storage;
        if let Some(v4) = gid.to_ipv4_mapped() {
            // SAFETY: the storage is large enough and aligned for every kind
            // of address.
            let v4_place = unsafe { &mut *place.cast::<libc::sockaddr_in>() };
            v4_place.sin_family = libc::AF_INET as u16;
            v4_place.sin_port = port.to_be();
            v4_place.sin_addr.s_addr = u32::from(v4).to_be();
        } else {
            // SAFETY: as above.
            let v6_place = unsafe { &mut *place.cast::<libc::sockaddr_in6>() };
            v6_place.sin6_family = libc::AF_INET6 as u16;
            v6_place.sin6_port = port.to_be();
            v6_place.sin6_addr.s6_addr = gid.octets();
            // A link-local address means nothing without its link.
            let netdev = facts
                .netdev
                .as_deref()
                .filter(|_| gid.is_unicast_link_local());
            if let Some(name) = netdev.and_then(|name| CString::new(name).ok()) {
                // SAFETY: NUL-terminated, and outlives the call.
                v6_place.sin6_scope_id = unsafe { libc::if_nametoindex(name.as_ptr()) };
            }
        }
        Self { storage }
    }

    const fn as_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }
}
