//! The subjects of a flow schema's rules, sorted by name. A schema may have as many as fit into an object,
//! and every request of a plane looks for its user among them.

use super::ALL;
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::{ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, SYSTEM_MASTERS, UserInfo};

const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The groups that mean the same in every plane.
const EVERYWHERE: [&str; 3] = [SYSTEM_MASTERS, ALL_AUTHENTICATED, ALL_UNAUTHENTICATED];

/// One subject of a rule.
#[derive(Debug)]
pub(super) enum Subject {
    /// Every user, in a group or not.
    Everybody,
    /// The user of this name. That of a service account contains its namespace and its name.
    User(Str),
    /// The users in this group.
    Group(Str),
    /// All service accounts of this namespace.
    Namespace(Str),
}

impl Subject {
    /// Reads a subject; `None` for one that matches nobody.
    pub(super) fn from_value(subject: &Value) -> Option<Self> {
        let name = |kind: &str| subject.at(&[kind, "name"])?.as_str();
        match subject.str_at(&["kind"]) {
            "User" => name("user").map(|name| Self::named(name, Self::User)),
            "Group" => name("group").map(|name| Self::named(name, Self::Group)),
            "ServiceAccount" => {
                let namespace = subject.str_at(&["serviceAccount", "namespace"]);
                let name = name("serviceAccount")?;
                Some(match name {
                    ALL => Self::Namespace(namespace.into()),
                    name => Self::User(format!("{ACCOUNT_PREFIX}{namespace}:{name}").into()),
                })
            }
            _ => None,
        }
    }

    fn named(name: &str, some: impl FnOnce(Str) -> Self) -> Self {
        match name {
            ALL => Self::Everybody,
            name => some(name.into()),
        }
    }
}

/// Which rules of a schema have which subjects. Rules are named by their position.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    /// The rules about everybody.
    everybody: Box<[usize]>,
    users: ByName,
    groups: ByName,
    /// By the namespace of service accounts.
    namespaces: ByName,
}

impl Subjects {
    /// Sorts the subjects of all rules of a schema.
    pub(super) fn of_rules<S: IntoIterator<Item = Subject>>(
        rules: impl Iterator<Item = S>,
    ) -> Self {
        let mut everybody = Vec::new();
        let (mut users, mut groups, mut namespaces) = (Vec::new(), Vec::new(), Vec::new());
        for (at, subjects) in rules.enumerate() {
            for subject in subjects {
                match subject {
                    Subject::Everybody => everybody.push(at),
                    Subject::User(name) => users.push((name, at)),
                    Subject::Group(name) => groups.push((name, at)),
                    Subject::Namespace(name) => namespaces.push((name, at)),
                }
            }
        }
        everybody.dedup();
        Self {
            everybody: everybody.into(),
            users: ByName::new(users),
            groups: ByName::new(groups),
            namespaces: ByName::new(namespaces),
        }
    }

    /// Returns the subjects of a schema with one rule about these groups.
    pub(super) fn of_groups(groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| Subject::Group((*group).into()));
        Self::of_rules(std::iter::once(groups))
    }

    /// Returns the rules that have this user among their subjects, a rule once for each subject that the user
    /// is. The names of a user of another plane mean others here, so such a user is matched by `*` and by the
    /// groups that mean the same in every plane.
    pub(super) fn rules_of<'s>(&'s self, user: &'s UserInfo) -> impl Iterator<Item = usize> + 's {
        let own = (!user.is_foreign).then_some(user.name.as_str());
        let account = own.and_then(|name| name.strip_prefix(ACCOUNT_PREFIX));
        let namespace = account.and_then(|rest| rest.split_once(':'));
        let groups = user.groups.iter().map(Str::as_str);
        let groups = groups.filter(move |group| !user.is_foreign || EVERYWHERE.contains(group));
        let of_users = own.into_iter().flat_map(move |name| self.users.of(name));
        let of_namespaces = namespace
            .into_iter()
            .flat_map(move |(namespace, _)| self.namespaces.of(namespace));
        let of_groups = groups.flat_map(move |group| self.groups.of(group));
        let everybody = self.everybody.iter().copied();
        everybody
            .chain(of_users)
            .chain(of_namespaces)
            .chain(of_groups)
    }
}

/// Rules by the name of one of their subjects, in the order of the names.
#[derive(Debug, Default)]
struct ByName(Box<[(Str, usize)]>);

impl ByName {
    fn new(mut pairs: Vec<(Str, usize)>) -> Self {
        pairs.sort_unstable();
        pairs.dedup();
        Self(pairs.into())
    }

    fn of<'s>(&'s self, name: &str) -> impl Iterator<Item = usize> + use<'s> {
        let from = self.0.partition_point(|(other, _)| other.as_str() < name);
        let count = self.0[from..].partition_point(|(other, _)| other.as_str() == name);
        self.0[from..from + count].iter().map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_of(subjects: &Subjects, user: &UserInfo) -> Vec<usize> {
        let mut rules: Vec<usize> = subjects.rules_of(user).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    fn subjects(rules: &[&str]) -> Subjects {
        let limits = polyplane_apimachinery::json::Limits::default();
        let rules = rules.iter().map(|rule| {
            let parsed = polyplane_apimachinery::json::parse(rule.as_bytes(), &limits);
            let items = parsed.expect("it is JSON").value;
            let items = items.as_array().expect("it is a list").to_vec();
            items
                .iter()
                .filter_map(Subject::from_value)
                .collect::<Vec<_>>()
        });
        Subjects::of_rules(rules)
    }

    #[test]
    fn a_user_has_the_rules_of_its_name_its_groups_and_its_namespace() {
        let subjects = subjects(&[
            r#"[{"kind": "User", "user": {"name": "jane"}}, {"kind": "User", "user": {"name": "jane"}}]"#,
            r#"[{"kind": "Group", "group": {"name": "dev"}}, {"kind": "User", "user": {"name": "jane"}}]"#,
            r#"[{"kind": "ServiceAccount", "serviceAccount": {"namespace": "a", "name": "*"}}]"#,
            r#"[{"kind": "ServiceAccount", "serviceAccount": {"namespace": "a", "name": "b"}}]"#,
            r#"[{"kind": "Group", "group": {"name": "*"}}, {"kind": "User", "user": {"name": "*"}}]"#,
            r#"[{"kind": "Other", "user": {"name": "jane"}}, {"kind": "User"}]"#,
            r#"[{"kind": "Group", "group": {"name": "system:authenticated"}}]"#,
        ]);
        let everybody = 4;
        for (name, groups, rules) in [
            ("jane", &["dev", "ops"][..], &[0, 1, everybody][..]),
            ("jan", &["system:authenticated"], &[everybody, 6]),
            ("system:serviceaccount:a:b", &[], &[2, 3, everybody]),
            ("system:serviceaccount:a:bc", &[], &[2, everybody]),
            ("system:serviceaccount:aa:b", &[], &[everybody]),
            ("system:serviceaccount:a", &[], &[everybody]),
        ] {
            let user = UserInfo::new(name, groups);
            assert_eq!(rules_of(&subjects, &user), rules, "{name}");
        }
        let foreign = UserInfo {
            is_foreign: true,
            ..UserInfo::new("jane", &["dev", "system:authenticated"])
        };
        assert_eq!(rules_of(&subjects, &foreign), [everybody, 6]);
    }
}
