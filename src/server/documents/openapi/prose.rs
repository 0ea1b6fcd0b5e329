//! What the documents say about operations and parameters. These texts are this project's own:
//! upstream's are in no crate.

use super::model::{Operation, Parameter, Streams};

/// Returns what an operation does.
pub(super) fn of_operation(operation: &Operation) -> String {
    let kind = operation
        .kind
        .as_ref()
        .map_or("", |[_, kind, _]| kind.as_str());
    match operation.action {
        Some("get") if operation.answer.is_empty() => "Reads the log of a container.".to_owned(),
        Some("get") => format!("Reads a {kind}."),
        Some("list") => format!("Lists or watches each {kind}."),
        Some("watch") => format!("Watches a {kind}. A list with the parameter watch does so too."),
        Some("watchlist") => {
            format!("Watches each {kind}. A list with the parameter watch does so too.")
        }
        Some("post") => format!("Creates a {kind}."),
        Some("put") => format!("Replaces a {kind}."),
        Some("patch") => format!("Changes parts of a {kind}, or applies it."),
        Some("delete") => format!("Deletes a {kind}."),
        Some("deletecollection") => format!("Deletes each selected {kind}."),
        Some("connect") => "Connects to what a node runs.".to_owned(),
        _ if operation.answer.is_empty() => "Says how tokens are verified.".to_owned(),
        _ => match operation.streams {
            Streams::No => "Says what is served.".to_owned(),
            Streams::Yes => String::new(),
        },
    }
}

/// Returns what a parameter does; `None` for one that has no text.
pub(super) fn of_parameter(parameter: &Parameter) -> Option<&'static str> {
    Some(match parameter.name() {
        "allowWatchBookmarks" => "Asks for events that only say up to which version a watch is.",
        "command" => "The command and its arguments, each as a parameter.",
        "container" => "The container, if the pod has several.",
        "continue" => "Asks for the next page; its value is in the metadata of the last one.",
        "dryRun" => "All: everything is checked and answered, and nothing is stored.",
        "fieldManager" => "Who changes the object, for its managed fields.",
        "fieldSelector" => "Selects objects by fields: a=b,c!=d.",
        "fieldValidation" => {
            "Unknown and repeated fields are refused (Strict), named in a warning (Warn) or dropped (Ignore)."
        }
        "follow" => "Goes on with what is written while the client reads.",
        "force" => "An apply takes fields that others manage.",
        "gracePeriodSeconds" => "Seconds that the object has before it is removed.",
        "ignoreStoreReadErrorWithClusterBreakingPotential" => {
            "Deletes an object that cannot be read."
        }
        "insecureSkipTLSVerifyBackend" => "Does not check who the node is.",
        "labelSelector" => "Selects objects by labels: a=b,c!=d,e in (f,g).",
        "limit" => "The most objects that one page has.",
        "limitBytes" => "The most bytes of the log.",
        "name" => "The name of the object.",
        "namespace" => "The namespace of the object.",
        "orphanDependents" => "Deprecated: propagationPolicy says it.",
        "path" => "The path at the other server.",
        "ports" => "The ports.",
        "pretty" => "Indents the answer.",
        "previous" => "The log of the container that ran before.",
        "propagationPolicy" => {
            "What becomes of objects that the deleted one owns: Orphan, Background or Foreground."
        }
        "resourceVersion" => "The version that the answer has, or from which a watch begins.",
        "resourceVersionMatch" => {
            "Whether the answer has that version (Exact) or a newer one (NotOlderThan)."
        }
        "sendInitialEvents" => "A watch begins with an event for each object that is there.",
        "shardSelector" => "Selects a part of the objects by a hash.",
        "sinceSeconds" => "The log of the last so many seconds.",
        "stderr" => "Passes on what the command writes to its standard error.",
        "stdin" => "Passes on to the command what the client writes.",
        "stdout" => "Passes on what the command writes to its standard output.",
        "stream" => "All, Stdout or Stderr.",
        "tailLines" => "The last so many lines of the log.",
        "timeoutSeconds" => "Seconds after which a list or watch ends.",
        "timestamps" => "Puts the time before each line.",
        "tty" => "The command gets a terminal.",
        "watch" => "Goes on with each change as an event.",
        _ => return None,
    })
}
