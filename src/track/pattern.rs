//! Plain packets like one that was decoded a moment ago: the packets of a flow
//! have the same headers but for a few numbers.

use super::{
    brief::{Brief, Numbers},
    burst::Link,
};
use crate::{
    Options,
    frame::Head,
    source::{LinkType, RawPacket},
};

/// Places for packets seen a moment ago: a power of two.
const PLACES: usize = 1 << 9;

/// A packet and what of it makes others like it.
#[derive(Debug, Clone, Copy)]
struct Pattern {
    head: Head,
    /// Bytes of the frame that were captured.
    captured: u32,
    /// The stretch whose numbers the flow has.
    stretch: u32,
    brief: Brief,
    link: Link,
}

/// Plain packets seen a moment ago.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    /// Empty before the first stretch.
    places: Vec<Pattern>,
    stretch: u32,
}

impl Patterns {
    /// Begins another stretch: nothing of the one before is taken up.
    pub fn begin(&mut self) {
        self.stretch = self.stretch.wrapping_add(1);
        if self.stretch == 1 {
            self.places.clear();
            let none = Pattern {
                head: Head::NONE,
                captured: 0,
                stretch: 0,
                brief: Brief::NONE,
                link: Link::NONE,
            };
            self.places.resize(PLACES, none);
        }
    }

    /// As [`Brief::of`], in place, and how the packet is linked to others;
    /// `None` where it is not plain.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    pub fn fill(
        &mut self,
        brief: &mut Brief,
        raw: &RawPacket<'_>,
        options: Options,
        numbers: &mut Numbers,
    ) -> Option<Link> {
        if raw.link != LinkType::ETHERNET {
            return None;
        }
        let head = Head::of(raw.data)?;
        let pattern = self.places.get_mut(head.scatter() as usize % PLACES)?;
        if pattern.head.is(&head)
            && pattern.stretch == self.stretch
            && pattern.captured as usize == raw.data.len()
            && pattern.brief.is_as_long(raw)
        {
            *brief = pattern.brief;
            let sound = brief.renew(raw, options)?;
            return Some(if sound { pattern.link } else { Link::NONE });
        }
        let new = Brief::of(raw, options, numbers)?;
        *brief = new;
        if !new.is_sound() {
            return Some(Link::NONE);
        }
        let link = Link::of(&new);
        *pattern = Pattern {
            head,
            captured: raw.data.len() as u32,
            stretch: self.stretch,
            brief: new,
            link,
        };
        Some(link)
    }
}
