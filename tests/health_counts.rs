//! `health`: its numbers are those of the flows, each packet counted once.

mod common;

use common::{fixture, fixtures, run};
use serde_json::Value;

fn document(command: &str, name: &str) -> Value {
    let path = fixture(name).display().to_string();
    let ran = run(&[command, "--format", "json", &path]);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn count(finding: &Value, name: &str) -> u64 {
    finding["evidence"]["counts"][name].as_u64().unwrap_or(0)
}

#[test]
fn read_responses_lost_past_the_capture_were_given_as_an_exact_number() {
    let summary = |name: &str| {
        let document = document("health", name);
        let findings = document["findings"].as_array().unwrap();
        let mut lost = findings
            .iter()
            .filter(|finding| finding["id"] == "read-response-loss");
        let summary = lost.next().expect(name)["summary"].as_str().unwrap();
        summary.to_owned()
    };
    // Of two lost before the requester asked again, one shows.
    let responder = summary("read_loss_responder");
    assert!(
        responder.starts_with("At least 7 READ responses were lost"),
        "{responder}"
    );
    // Where each one lost is a hole, the number is what it is.
    let requester = summary("psn_wrap");
    assert!(
        requester.starts_with("1 READ response was lost"),
        "{requester}"
    );
}

#[test]
fn packets_sent_again_were_counted_twice_or_not_at_all() {
    for name in fixtures() {
        let flows = document("flows", &name);
        let flows = flows["flows"].as_array().unwrap();
        let sent_again: u64 = flows
            .iter()
            .map(|flow| flow["requests"]["retransmitted"].as_u64().unwrap())
            .sum();
        let health = document("health", &name);
        let findings = health["findings"].as_array().unwrap().iter();
        let told: u64 = findings
            .map(|finding| match finding["id"].as_str().unwrap() {
                // Its own count is of responses.
                "read-response-loss" => count(finding, "reads_sent_again"),
                _ => count(finding, "packets_sent_again"),
            })
            .sum();
        assert_eq!(told, sent_again, "{name}");
    }
}
