//! The JSON of a line, member by member.

use std::time::SystemTime;

use polyplane_apimachinery::Str;
use polyplane_apimachinery::json::{self, write_string};
use polyplane_auth::UserInfo;

use super::{Bodies, Event, Outcome, Part, Parts, PlaneName, Sources, stamp};

/// A line of JSON that is being written, behind others.
pub(super) struct Line<'a>(pub(super) &'a mut Vec<u8>);

impl Line<'_> {
    pub(super) fn name(&mut self, name: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        write_string(text, self.0);
    }

    pub(super) fn some(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.text(name, text);
        }
    }

    pub(super) fn raw(&mut self, name: &str, json: &[u8]) {
        if !json.is_empty() {
            self.name(name);
            self.0.extend_from_slice(json.trim_ascii_end());
        }
    }

    pub(super) fn time(&mut self, time: SystemTime) {
        self.0.push(b'"');
        stamp(time).write_rfc3339_micro(self.0);
        self.0.push(b'"');
    }

    pub(super) fn texts(&mut self, texts: &[Str]) {
        self.0.push(b'[');
        for (index, text) in texts.iter().enumerate() {
            if index > 0 {
                self.0.push(b',');
            }
            write_string(text, self.0);
        }
        self.0.push(b']');
    }

    pub(super) fn addresses(&mut self, name: &str, addresses: &Sources) {
        use std::io::Write as _;
        if addresses.first.is_none() {
            return;
        }
        self.name(name);
        self.0.push(b'[');
        for (index, address) in addresses.iter().enumerate() {
            if index > 0 {
                self.0.push(b',');
            }
            // Digits, letters, dots and colons need no escapes. Memory takes all that is written.
            let _ = write!(self.0, "\"{address}\"");
        }
        self.0.push(b']');
    }

    pub(super) fn user(&mut self, name: &str, user: &UserInfo) {
        self.name(name);
        self.0.push(b'{');
        self.some("username", &user.name);
        self.some("uid", &user.uid);
        if !user.groups.is_empty() {
            self.name("groups");
            self.texts(&user.groups);
        }
        if !user.extra.is_empty() {
            self.name("extra");
            self.0.push(b'{');
            for (index, (key, values)) in user.extra.iter().enumerate() {
                if index > 0 {
                    self.0.push(b',');
                }
                write_string(key, self.0);
                self.0.push(b':');
                self.texts(values);
            }
            self.0.push(b'}');
        }
        self.0.push(b'}');
    }

    pub(super) fn constraint(&mut self, verb: &str) {
        if !verb.is_empty() {
            self.name("authenticationMetadata");
            self.0.push(b'{');
            self.text("impersonationConstraint", verb);
            self.0.push(b'}');
        }
    }

    /// Writes the object, whose name may follow from the body of the request.
    pub(super) fn object(&mut self, head: &Parts, created: &str) {
        self.name("objectRef");
        self.0.push(b'{');
        self.some("resource", head.of(Part::Resource));
        self.some("namespace", head.of(Part::Namespace));
        self.some("name", head.of(Part::Name));
        self.some("apiGroup", head.of(Part::Group));
        self.some("apiVersion", head.of(Part::Version));
        self.some("subresource", head.of(Part::Subresource));
        self.some("name", created);
        self.0.push(b'}');
    }

    pub(super) fn outcome(&mut self, outcome: &Outcome) {
        if !outcome.status.is_empty() {
            return self.raw("responseStatus", &outcome.status);
        }
        self.name("responseStatus");
        self.0.extend_from_slice(br#"{"metadata":{},"code":"#);
        json::write(&i64::from(outcome.code).into(), self.0);
        self.0.push(b'}');
    }

    /// Writes the annotations of a request, and leaves them open for those of its plane.
    pub(super) fn annotations(&mut self, event: &Event, is_first: bool, bodies: Bodies) {
        self.0.push(b'{');
        if !is_first {
            if let Some((allowed, reason)) = &event.decision {
                let decision = if *allowed { "allow" } else { "forbid" };
                self.text("authorization.k8s.io/decision", decision);
                let reason = &event.head.text[reason.clone()];
                self.text("authorization.k8s.io/reason", reason);
            }
            for (key, value) in &event.annotations {
                self.text(key, value);
            }
            if event.request_left_out {
                self.text("polyplane.dev/request-left-out", "true");
            }
            if event.response_left_out {
                self.text("polyplane.dev/response-left-out", "true");
            }
        }
        if bodies == Bodies::Truncated {
            self.text("audit.k8s.io/truncated", "true");
        }
    }

    pub(super) fn plane(&mut self, plane: &PlaneName<'_>) {
        self.text("polyplane.dev/control-plane", plane.name);
        self.text("polyplane.dev/control-plane-id", plane.id);
    }
}
