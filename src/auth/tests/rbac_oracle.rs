//! Decisions, escalation checks and aggregated roles against the recorded answers of upstream's own
//! code (`go run ./rbac` in `src/batteries/generate`).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::rbac::aggregation::AggregatedRules;
use polyplane_auth::rbac::binding::ObjectName;
use polyplane_auth::rbac::escalation::{Permission, uncovered};
use polyplane_auth::rbac::index::{Index, RbacResource};
use polyplane_auth::rbac::policy_rule::PolicyRule;
use polyplane_auth::{Attributes, Decision, Subject, UserInfo};

fn lines(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let file = std::fs::File::open(path.join(format!("{name}.jsonl.gz")));
    let mut text = String::new();
    let mut expanded = GzDecoder::new(file.expect("the recorded answers are there"));
    expanded.read_to_string(&mut text).expect("it is text");
    text.lines().map(parse).collect()
}

fn parse(line: &str) -> Value {
    let limits = json::Limits::default();
    json::parse(line.as_bytes(), &limits)
        .expect("a line is JSON")
        .value
}

fn name_of(object: &Value) -> ObjectName<'_> {
    ObjectName {
        namespace: object.str_at(&["metadata", "namespace"]),
        name: object.str_at(&["metadata", "name"]),
    }
}

fn index_of(world: &Value) -> Index {
    let mut index = Index::default();
    let lists = [
        ("roles", RbacResource::Role),
        ("clusterRoles", RbacResource::Role),
        ("roleBindings", RbacResource::Binding),
        ("clusterRoleBindings", RbacResource::Binding),
    ];
    for (list, resource) in lists {
        for object in world.items_at(&[list]) {
            index.put(resource, name_of(object), object);
        }
    }
    index
}

fn texts(value: &Value, name: &str) -> Vec<Str> {
    let items = value.items_at(&[name]).iter();
    items
        .filter_map(|item| item.as_str().map(Str::from))
        .collect()
}

fn user_of(question: &Value) -> UserInfo {
    UserInfo {
        name: question.str_at(&["user"]).into(),
        uid: question.str_at(&["uid"]).into(),
        groups: texts(question, "groups"),
        extra: Vec::new(),
        is_foreign: false,
    }
}

fn rules_of(value: &Value, name: &str) -> Vec<PolicyRule> {
    let rules = value.items_at(&[name]).iter();
    rules.map(PolicyRule::from_value).collect()
}

fn subject_of(question: &Value) -> Subject<'_> {
    let path = question.str_at(&["path"]);
    if !path.is_empty() {
        return Subject::Path(path);
    }
    Subject::Resource {
        group: question.str_at(&["group"]),
        version: question.str_at(&["version"]),
        resource: question.str_at(&["resource"]),
        subresource: question.str_at(&["subresource"]),
        namespace: question.str_at(&["namespace"]),
        name: question.str_at(&["name"]),
        field_selector: "",
    }
}

/// Returns what differs from upstream's answer to a question.
fn difference(index: &Index, question: &Value) -> Option<String> {
    let user = user_of(question);
    let attributes = Attributes {
        user: &user,
        verb: question.str_at(&["verb"]),
        subject: subject_of(question),
    };
    let grant = index.authorize(&attributes);
    let reason = grant.map(|grant| grant.reason(&user));
    let decision = index.decide(&attributes);
    let equal = if question.bool_at(&["allowed"]) {
        // Upstream's reason depends on the order of its cache; each of these can be the one.
        let known = reason.as_deref().is_some_and(|reason| {
            texts(question, "reasons")
                .iter()
                .any(|known| known == reason)
        });
        known && decision == Decision::Allow
    } else {
        let refused = Decision::NoOpinion(question.str_at(&["reason"]).to_owned());
        reason.is_none() && decision == refused
    };
    (!equal).then(|| format!("{decision:?} because of {reason:?}: {question:?}"))
}

#[test]
fn decisions_are_those_of_upstream() {
    let (mut questions, mut allowed, mut with_selector) = (0, 0, 0);
    let mut different = Vec::new();
    for world in lines("rbac_decisions") {
        let index = index_of(&world);
        for question in world.items_at(&["questions"]) {
            questions += 1;
            allowed += usize::from(question.bool_at(&["allowed"]));
            let selectors = ["fieldSelector", "labelSelector"];
            with_selector += usize::from(selectors.iter().any(|name| question.get(name).is_some()));
            different.extend(difference(&index, question));
        }
    }
    let share = allowed as f64 / f64::from(questions);
    println!(
        "decisions: {questions} questions, {:.1} % allowed, {with_selector} with a selector, {} different",
        100.0 * share,
        different.len()
    );
    assert!(questions >= 10_000, "{questions}");
    assert!(share >= 0.3, "{share}");
    assert_eq!(different, [""; 0]);
}

#[test]
fn the_rules_of_a_user_are_those_of_upstream() {
    let mut reviews = 0;
    for world in lines("rbac_decisions") {
        let index = index_of(&world);
        for review in world.items_at(&["reviews"]) {
            reviews += 1;
            let user = user_of(review);
            let rules = index.rules_for(&user, review.str_at(&["namespace"]));
            // A review shows of each rule only the lists that matter for its half.
            let of_resources = rules.of_resources().map(|rule| {
                let mut shown = rule.to_value();
                drop(shown.remove(&["nonResourceURLs"]));
                PolicyRule::from_value(&shown)
            });
            assert!(
                of_resources.eq(rules_of(review, "resourceRules")),
                "{review:?}"
            );
            let of_paths = rules.of_paths().map(|rule| {
                let mut shown = rule.to_value();
                for list in ["apiGroups", "resources", "resourceNames"] {
                    drop(shown.remove(&[list]));
                }
                PolicyRule::from_value(&shown)
            });
            assert!(
                of_paths.eq(rules_of(review, "nonResourceRules")),
                "{review:?}"
            );
            assert_eq!(rules.error.unwrap_or_default(), review.str_at(&["error"]));
        }
    }
    println!("reviews: {reviews}");
    assert!(reviews >= 700, "{reviews}");
}

#[test]
fn escalation_is_refused_as_upstream_refuses_it() {
    let (mut attempts, mut allowed) = (0, 0);
    for world in lines("rbac_decisions") {
        let index = index_of(&world);
        for attempt in world.items_at(&["escalations"]) {
            let user = user_of(attempt);
            let rules = rules_of(attempt, "rules");
            let namespace = attempt.str_at(&["namespace"]);
            let answer = index.confirm_no_escalation(&user, namespace, &rules);
            let text = answer.err().map(|error| error.to_string());
            assert_eq!(
                text.as_deref().unwrap_or_default(),
                attempt.str_at(&["error"])
            );
            attempts += 1;
            allowed += usize::from(text.is_none());
        }
    }
    println!("escalations: {attempts} attempts, {allowed} allowed");
    assert!(attempts >= 700 && allowed >= 200 && allowed < attempts);
}

#[test]
fn rules_cover_what_they_cover_upstream() {
    let (mut comparisons, mut covered) = (0, 0);
    for line in lines("rbac_covers") {
        let (held, asked) = (rules_of(&line, "held"), rules_of(&line, "asked"));
        let held: Vec<&PolicyRule> = held.iter().collect();
        let missing = uncovered(&held, &asked).expect("they are few");
        let rules: Vec<PolicyRule> = missing.iter().map(as_rule).collect();
        assert_eq!(rules, rules_of(&line, "missing"), "{line:?}");
        assert_eq!(Permission::describe(&missing), texts(&line, "texts"));
        comparisons += 1;
        covered += usize::from(missing.is_empty() && !asked.is_empty());
    }
    println!("covers: {comparisons} comparisons, {covered} covered");
    assert!(comparisons >= 2_000 && covered >= 600);
}

/// Returns a permission as the rule that upstream makes of it.
fn as_rule(permission: &Permission<'_>) -> PolicyRule {
    let mut rule = Value::object();
    let mut set = |name: &str, item: &str| rule.set(&[name], Value::Array(vec![item.into()]));
    match *permission {
        Permission::Resource {
            group,
            resource,
            verb,
            name,
        } => {
            set("verbs", verb);
            set("apiGroups", group);
            set("resources", resource);
            name.into_iter().for_each(|name| set("resourceNames", name));
        }
        Permission::Path { url, verb } => {
            set("verbs", verb);
            set("nonResourceURLs", url);
        }
    }
    PolicyRule::from_value(&rule)
}

/// Returns the roles whose rules are stale with those to write, by name.
fn stale_of(index: &Index) -> BTreeMap<Str, Vec<PolicyRule>> {
    let mut all = index.aggregations();
    let mut stale = BTreeMap::new();
    while let Some((name, rules)) = all.next_role() {
        match rules {
            AggregatedRules::Current => {}
            AggregatedRules::Stale(rules) => drop(stale.insert(name.clone(), rules)),
            AggregatedRules::LeftOut => panic!("{name} selects little"),
        }
    }
    stale
}

/// Writes stale rules until there are none.
fn comes_to_rest(mut index: Index, line: &Value) {
    let mut objects: BTreeMap<String, Value> = BTreeMap::new();
    for role in line.items_at(&["clusterRoles"]) {
        objects.insert(role.str_at(&["metadata", "name"]).to_owned(), role.clone());
    }
    for _ in 0..=objects.len() {
        let stale = stale_of(&index);
        if stale.is_empty() {
            return;
        }
        for (name, rules) in stale {
            let object = objects.get_mut(name.as_str()).expect("it is there");
            let rules = rules.iter().map(PolicyRule::to_value).collect();
            object.set(&["rules"], Value::Array(rules));
            let name = ObjectName {
                namespace: "",
                name: &name,
            };
            index.put(RbacResource::Role, name, object);
        }
    }
    panic!("it does not come to rest: {line:?}");
}

#[test]
fn aggregated_roles_have_the_rules_that_upstreams_controller_writes() {
    let (mut roles, mut written, mut circular) = (0, 0, 0);
    for line in lines("rbac_aggregation") {
        let index = index_of(&line);
        let found = stale_of(&index);
        let mut stale = BTreeMap::new();
        for outcome in line.items_at(&["outcomes"]) {
            let name = outcome.str_at(&["name"]);
            let expected = outcome
                .bool_at(&["written"])
                .then(|| rules_of(outcome, "rules"));
            roles += 1;
            if index.aggregates_itself(name) {
                // Upstream lets roles that select each other exchange their rules, which may never end.
                circular += 1;
                let rules = found.get(name).cloned();
                stale.extend(rules.map(|rules| (Str::from(name), rules)));
                continue;
            }
            assert_eq!(found.get(name), expected.as_ref(), "{name} of {line:?}");
            written += usize::from(expected.is_some());
            stale.extend(expected.map(|rules| (Str::from(name), rules)));
        }
        assert_eq!(found, stale);
        comes_to_rest(index, &line);
    }
    println!("aggregation: {roles} roles, {written} written, {circular} that select each other");
    assert!(roles >= 1_500 && written >= 200 && written < roles && circular < roles / 5);
}
