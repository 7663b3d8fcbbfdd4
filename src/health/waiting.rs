//! Time lost by waiting.

use std::fmt::Write;

use super::{Case, Draft, FlowCase, Severity, trail::Sign};
use crate::words::{plural, span};

/// Unit of the local ACK timeout: 4.096 µs times two to the power of a code
/// (IBTA vol. 1, 9.7.6.1.3).
const TIMEOUT_UNIT_NS: f64 = 4096.0;

/// The timer code whose time is nearest, as a ratio, and that time.
fn nearest_code(silence_ns: u64) -> (u64, u64) {
    let code = (silence_ns as f64 / TIMEOUT_UNIT_NS)
        .max(1.0)
        .log2()
        .round();
    let code = (code as u64).min(31);
    (code, 4096 << code)
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// `timeout`.
pub(super) fn timeout(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let runs = flow.trail.mark(Sign::Timeout);
    if runs.count == 0 {
        return None;
    }
    let wait = median(&flow.trail.silences);
    let (code, exact) = nearest_code(wait);
    let again = flow.trail.count(Sign::AgainTimeout);
    let waited = match runs.count {
        1 => format!("once, after a silence of {}", span(wait)),
        n => format!(
            "{n} times, after silences of {} (median), {} in all",
            span(wait),
            span(runs.amount)
        ),
    };
    let mut summary = format!(
        "The requester sent again by itself {waited}, {} altogether; the nearest timer code is \
         {code} (4.096 µs × 2^{code} = {})",
        plural(again, "packet", "packets"),
        span(exact),
    );
    let reads = flow.trail.count(Sign::TimeoutRead);
    if reads > 0 {
        // No NAK tells of that, and where responses are lost past the capture
        // no hole does.
        let _ = write!(
            summary,
            "; {reads} of these were READs, of which a response may have been lost"
        );
    }
    summary.push('.');
    Some(
        Draft::new(flow.subject(), summary)
            .count("timeouts", runs.count)
            .count("median_silence_ns", wait)
            .count("timer_code", code)
            .count("silence_ns", runs.amount)
            .count("packets_sent_again", again)
            .count_some("reads", reads)
            .frames(&runs.frames)
            .cost(runs.amount, again),
    )
}

/// `peer-vanished`.
pub(super) fn peer_vanished(case: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let repeat = flow.trail.repeat.as_ref()?;
    if repeat.times < case.thresholds.retries {
        return None;
    }
    // Of a flow that was forgotten, more may have come.
    let last = flow.flow?.last_ts_ns;
    // A requester that goes on was answered, in the capture or not.
    let every = repeat.last_ns.saturating_sub(repeat.first_ns) / repeat.times.max(2) as i64;
    if last.saturating_sub(repeat.last_ns) > every {
        return None;
    }
    let heard = flow.peer.map(|peer| peer.last_ts_ns);
    if heard.is_some_and(|last| last > repeat.first_ns) {
        return None;
    }
    let since = heard.unwrap_or(repeat.first_ns);
    let silent = last.saturating_sub(since).max(0) as u64;
    let summary = format!(
        "The request with PSN {} was sent again {} and {}.",
        repeat.psn,
        plural(repeat.times, "time", "times"),
        if heard.is_some() {
            format!(
                "nothing came back any more: the last sign of the peer was {} before the end of \
                 the flow",
                span(silent)
            )
        } else {
            format!("no answer is in the capture, over {}", span(silent))
        }
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("times_sent_again", repeat.times)
            .count("silent_ns", silent)
            .frames(&repeat.frames)
            .cost(silent, repeat.times),
    )
}

/// `rnr`.
pub(super) fn receiver_not_ready(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let trail = flow.trail;
    let naks = trail.mark(Sign::Rnr);
    if naks.count == 0 {
        return None;
    }
    let asked = naks.amount.saturating_mul(1000);
    let over = trail.mark(Sign::RnrOver);
    let again = trail.count(Sign::AgainRnr);
    let gave_up = trail.count(Sign::GaveUp);
    let mut summary = format!(
        "{}: the receiver had no receive posted and asked to wait {} in all",
        plural(naks.count, "RNR NAK", "RNR NAKs"),
        span(asked)
    );
    if over.count > 0 {
        let _ = write!(
            summary,
            "; {} passed before the requester went on, with {} sent again",
            span(over.amount),
            plural(again, "packet", "packets")
        );
    }
    if gave_up > 0 {
        let given = plural(gave_up, "message was given up", "messages were given up");
        let _ = write!(summary, "; {given} after that");
    }
    summary.push('.');
    let draft = Draft::new(flow.subject(), summary)
        .count("rnr_naks", naks.count)
        .count("asked_ns", asked)
        .count("waited_ns", over.amount)
        .count("packets_sent_again", again)
        .count("sequence_naks", trail.count(Sign::RnrNak))
        .count("given_up", gave_up)
        .frames(&naks.frames)
        .cost(asked.max(over.amount), naks.count);
    Some(if gave_up > 0 {
        draft.severity(Severity::Error).hint(
            "Post receives before the peer sends, and enough of them; rnr_retry 7 makes a \
             requester wait for ever instead of giving up.",
        )
    } else {
        draft
    })
}

/// `stall`.
pub(super) fn stall(case: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let stalls = flow.trail.mark(Sign::Stall);
    if stalls.count == 0 {
        return None;
    }
    let least = u64::try_from(case.thresholds.stall_ns).unwrap_or(0);
    let summary = format!(
        "{} of {} or more while a request waited for its answer, {} in all.",
        plural(stalls.count, "silence", "silences"),
        span(least),
        span(stalls.amount)
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("stalls", stalls.count)
            .count("silence_ns", stalls.amount)
            .frames(&stalls.frames)
            .cost(stalls.amount, 0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_codes_are_the_nearest() {
        assert_eq!(nearest_code(70_000_000), (14, 67_108_864));
        assert_eq!(nearest_code(67_108_864), (14, 67_108_864));
        assert_eq!(nearest_code(536_000_000).0, 17);
        assert_eq!(nearest_code(0), (0, 4096));
        assert_eq!(nearest_code(u64::MAX).0, 31);
    }

    #[test]
    fn median_of_none_is_none() {
        assert_eq!(median(&[]), 0);
        assert_eq!(median(&[3, 1, 2]), 2);
    }
}
