//! What a plane's priority levels have at the moment, as text in upstream's columns. Whoever may read the
//! path in the plane may read it.
//!
//! The numbers of requests that have gone on or were refused begin anew when a level has had no request:
//! an idle plane keeps nothing.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use http::header::X_CONTENT_TYPE_OPTIONS;
use polyplane_apimachinery::time::Timestamp;
use polyplane_fairness::levels::{Dispatcher, LevelKind, LevelUse, Levels, QueueUse, RequestView};
use polyplane_fairness::{Moment, PlaneMeter};
use polyplane_plane::Snapshot;
use polyplane_registry::flows;

use crate::answer::respond::{Refusal, Reply, text};
use crate::pipeline::Pipeline;
use crate::request::authorize::Requested;
use crate::request::flow::FlowRequest;
use crate::request::request_info::RequestInfo;
use crate::request::route::parse_query;
use crate::request::single::route;

/// The prefix of the paths of the dumps.
pub(crate) const DUMPS: &str = "/debug/api_priority_and_fairness/";
/// The parameter that adds who makes each request, and what it is.
const DETAILS: &str = "includeRequestDetails";
/// Queues of a level that are shown although they are empty, at most.
const QUEUES_SHOWN_MAX: u32 = 1024;
/// The narrowest column, in characters.
const COLUMN_MIN: usize = 8;
/// How long a request is taken to last, in nanoseconds.
const SERVICE_NANOS: i128 = 3_000_000;

type Plane = Dispatcher<FlowRequest>;

impl Pipeline<'_> {
    /// Answers a dump of the plane that has this meter and is in this state.
    pub(crate) fn dump_flows(
        &self,
        path: &str,
        meter: &Arc<PlaneMeter>,
        cut: Option<Snapshot>,
    ) -> Result<Reply, Refusal> {
        let flows = &self.state.flows;
        let (Some(cut), Some(_)) = (cut, flows.seats()) else {
            return Err(Refusal::no_such_path());
        };
        let levels = flows::index_of(&cut).levels();
        let rows = flows.of_plane(meter, |plane| {
            Some(match path.strip_prefix(DUMPS)? {
                "dump_priority_levels" => level_rows(levels, plane),
                "dump_queues" => queue_rows(levels, plane),
                "dump_requests" => self.request_rows(levels, plane),
                _ => return None,
            })
        });
        let rows = rows.ok_or_else(Refusal::no_such_path)?;
        let mut reply = text(StatusCode::OK, table(&rows));
        reply.headers_mut().remove(X_CONTENT_TYPE_OPTIONS);
        Ok(reply)
    }

    fn request_rows(&self, levels: &Levels, plane: Option<&Plane>) -> Vec<Vec<String>> {
        let has_details = self
            .query
            .iter()
            .any(|(name, value)| name == DETAILS && !value.is_empty());
        let mut rows = vec![head(&[
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "ArriveTime",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
            "StartTime",
        ])];
        if has_details {
            rows[0].extend(head(&[
                "UserName",
                "Verb",
                "APIPath",
                "Namespace",
                "Name",
                "APIVersion",
                "Resource",
                "SubResource",
            ]));
        }
        let (now, clock) = (self.state.now(), SystemTime::now());
        let time = |then: Moment| {
            let ago = Duration::from_nanos(now.0.saturating_sub(then.0));
            nanoseconds(clock - ago)
        };
        for name in names(levels, plane) {
            for request in plane.iter().flat_map(|plane| plane.requests(&name)) {
                rows.push(self.request_row(&name, &request, has_details, &time));
            }
        }
        rows
    }

    fn request_row(
        &self,
        level: &str,
        request: &RequestView<'_, FlowRequest>,
        has_details: bool,
        time: &impl Fn(Moment) -> String,
    ) -> Vec<String> {
        let FlowRequest {
            class,
            user,
            method,
            uri,
            ..
        } = request.kept;
        let query = parse_query(uri.query());
        let route = route(self.state, uri.path()).ok();
        let path = route.as_ref().map_or("", |route| &*route.path);
        let info = RequestInfo::parse(method, path, &query).unwrap_or(RequestInfo::Path(path));
        let resource = match &info {
            RequestInfo::Resource(info) => Some(info),
            RequestInfo::Path(_) => None,
        };
        let namespace = resource.map_or("", |info| info.namespace);
        let never = || "0001-01-01T00:00:00Z".to_owned();
        let mut row = vec![
            level.to_owned(),
            class.schema().to_owned(),
            request
                .queue
                .map_or("-1".to_owned(), |queue| queue.to_string()),
            request
                .index
                .map_or("-1".to_owned(), |index| index.to_string()),
            class.distinguisher(&user.name, namespace).to_owned(),
            time(request.arrived),
            request.seats.to_string(),
            "0".to_owned(),
            "0s".to_owned(),
            request.started.map_or_else(never, time),
        ];
        if has_details {
            let requested = Requested::of(&info, &query, method);
            let api_version = resource.map_or(String::new(), |info| match info.group {
                "" => info.version.to_owned(),
                group => format!("{group}/{}", info.version),
            });
            row.extend([
                user.name.to_string(),
                requested.verb.clone().into_owned(),
                path.to_owned(),
                namespace.to_owned(),
                requested.name.clone().into_owned(),
                api_version,
                resource.map_or("", |info| info.resource).to_owned(),
                resource.map_or("", |info| info.subresource).to_owned(),
            ]);
        }
        row
    }
}

/// Returns the names of the levels that there are, and of those that are about to go.
fn names(levels: &Levels, plane: Option<&Plane>) -> Vec<Arc<str>> {
    let known = levels.iter().map(|level| Arc::clone(&level.name));
    let used = plane.into_iter().flat_map(|plane| plane.levels());
    let mut names: Vec<_> = known.chain(used.map(|level| level.name)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn level_rows(levels: &Levels, plane: Option<&Plane>) -> Vec<Vec<String>> {
    let mut rows = vec![head(&[
        "PriorityLevelName",
        "ActiveQueues",
        "IsIdle",
        "IsQuiescing",
        "WaitingRequests",
        "ExecutingRequests",
        "DispatchedRequests",
        "RejectedRequests",
        "TimedoutRequests",
        "CancelledRequests",
    ])];
    let used: Vec<LevelUse> = plane.map_or(Vec::new(), |plane| plane.levels().collect());
    for name in names(levels, plane) {
        let level = used.iter().find(|level| level.name == name);
        let number = |of: fn(&LevelUse) -> u64| level.map_or(0, of).to_string();
        rows.push(vec![
            name.to_string(),
            level.map_or(0, |level| level.active_queues).to_string(),
            level.is_none().to_string(),
            level.is_some_and(|level| level.is_leaving).to_string(),
            number(|level| level.waiting),
            number(|level| level.executing),
            number(|level| level.dispatched),
            number(|level| level.rejected),
            number(|level| level.timed_out),
            number(|level| level.cancelled),
        ]);
    }
    rows
}

fn queue_rows(levels: &Levels, plane: Option<&Plane>) -> Vec<Vec<String>> {
    let mut rows = vec![head(&[
        "PriorityLevelName",
        "Index",
        "PendingRequests",
        "ExecutingRequests",
        "SeatsInUse",
        "NextDispatchR",
        "InitialSeatsSum",
        "MaxSeatsSum",
        "TotalWorkSum",
    ])];
    for name in names(levels, plane) {
        let used = plane.map_or(Vec::new(), |plane| plane.queues(&name));
        let queues = match levels.get(&name).map(|level| level.kind) {
            Some(LevelKind::Queue(queueing)) if queueing.queues <= QUEUES_SHOWN_MAX => {
                queueing.queues
            }
            _ => 0,
        };
        let of = |number: u32| {
            let found = used.iter().find(|(one, _)| *one == number);
            (
                number,
                found.map_or(QueueUse::default(), |(_, queue)| *queue),
            )
        };
        let shown = (0..queues).map(of);
        // More than there are now, or of a level that has too many to show them all.
        let more = used.iter().copied().filter(|(number, _)| *number >= queues);
        for (number, queue) in shown.chain(more) {
            let work = i128::from(queue.seats_waiting) * SERVICE_NANOS;
            rows.push(vec![
                name.to_string(),
                number.to_string(),
                queue.waiting.to_string(),
                queue.executing.to_string(),
                queue.seats_in_use.to_string(),
                seat_seconds(queue.start),
                queue.seats_waiting.to_string(),
                queue.seats_waiting.to_string(),
                seat_seconds(work),
            ]);
        }
    }
    rows
}

/// Returns seat-nanoseconds as upstream writes seat-seconds.
fn seat_seconds(nanos: i128) -> String {
    let units = nanos.max(0) / 10;
    format!("{}.{:08}ss", units / 100_000_000, units % 100_000_000)
}

/// Returns a time with its nanoseconds, without zeros at the end.
fn nanoseconds(time: SystemTime) -> String {
    let mut text = Timestamp::from(time).to_rfc3339();
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let digits = format!("{:09}", since.subsec_nanos());
    let digits = digits.trim_end_matches('0');
    if !digits.is_empty() {
        text.pop();
        text.push('.');
        text.push_str(digits);
        text.push('Z');
    }
    text
}

/// Writes rows as a table: a comma ends each cell but the last, and columns are aligned.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let length = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> = (0..columns)
        .map(|at| {
            let widest = rows.iter().map(|row| length(row, at)).max().unwrap_or(0);
            (widest + ", ".len()).max(COLUMN_MIN)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            out.push_str(cell);
            if at + 1 < row.len() {
                out.push(',');
                let filled = length(row, at) + 1;
                let wanted = widths.get(at).copied().unwrap_or(filled);
                out.extend(std::iter::repeat_n(' ', wanted.saturating_sub(filled)));
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_numbers_look_as_upstream_writes_them() {
        let rows = [
            vec!["PriorityLevelName".into(), "Index".into(), "Last".into()],
            vec!["a".into(), "1".into(), "x".into()],
        ];
        let wanted = "PriorityLevelName, Index,  Last\na,                 1,      x\n";
        assert_eq!(table(&rows), wanted);
        assert_eq!(seat_seconds(3_000_000), "0.00300000ss");
        assert_eq!(seat_seconds(12_345_678_912), "12.34567891ss");
        let time = UNIX_EPOCH + Duration::new(1_000_000_000, 120_000_000);
        assert_eq!(nanoseconds(time), "2001-09-09T01:46:40.12Z");
    }
}
