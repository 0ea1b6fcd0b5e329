//! The modes of impersonation, and the rights that each of them needs.
//!
//! A *constrained* mode is for one kind of user and needs two things: the right to be that user, by
//! the verb `impersonate:<mode>`, and the right to make this very request as somebody else, by the
//! verb `impersonate-on:<mode>:<verb>`. The legacy mode needs the verb `impersonate` alone.

use std::sync::Arc;

use polyplane_apimachinery::Str;
use polyplane_apimachinery::field_error::{FieldError, Path, aggregate};
use polyplane_apimachinery::names;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{
    ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, Attributes, NODES, SYSTEM_MASTERS, Subject,
    UserInfo,
};
use polyplane_registry::AccessCheck;
use polyplane_registry::authority::forbidden;

use super::wanted::WantedUser;

const AUTHENTICATION: &str = "authentication.k8s.io";
/// Number of groups, or of extra values, from which on one check for all of them comes first.
const MANY: usize = 4;
/// The only extra value of a caller in the checks of [`Mode::AssociatedNode`]: the keys of all.
const ASSOCIATED_NODE_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";
/// The characters besides letters and digits that a path may have.
const PATH_MARKS: &[u8] = b"/-._~%!$&'()*+,;=:";

/// A mode of impersonation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A service account acts as the node that its pod runs on.
    AssociatedNode,
    /// Any node.
    ArbitraryNode,
    /// A service account.
    ServiceAccount,
    /// Any other user, with any groups but `system:masters`.
    UserInfo,
    /// Anybody, by one right that says nothing of the request.
    Legacy,
}

impl Mode {
    /// All modes in the order in which they are tried.
    pub(super) const ALL: [Self; 5] = [
        Self::AssociatedNode,
        Self::ArbitraryNode,
        Self::ServiceAccount,
        Self::UserInfo,
        Self::Legacy,
    ];

    /// Returns the verb of the mode for the right to be somebody.
    const fn verb(self) -> &'static str {
        match self {
            Self::AssociatedNode => "impersonate:associated-node",
            Self::ArbitraryNode => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Legacy => "impersonate",
        }
    }

    /// Returns the verb of a constrained mode; empty for the legacy mode.
    pub(super) const fn constraint(self) -> &'static str {
        match self {
            Self::Legacy => "",
            constrained => constrained.verb(),
        }
    }

    /// Returns the verb for the right to make a request as somebody else.
    fn verb_on(self, verb: &str) -> Option<String> {
        let mode = self.constraint().strip_prefix("impersonate:")?;
        Some(format!("impersonate-on:{mode}:{verb}"))
    }

    const fn is_constrained(self) -> bool {
        !matches!(self, Self::Legacy)
    }

    /// Returns the group and version of users and groups in the rights of the mode.
    const fn group(self) -> &'static str {
        if self.is_constrained() {
            AUTHENTICATION
        } else {
            ""
        }
    }

    /// Returns whether the mode is for this user and this caller.
    pub(super) fn applies(self, wanted: &WantedUser, caller: &UserInfo) -> bool {
        let by_name_alone = wanted.only_name_is_set();
        match self {
            Self::AssociatedNode => {
                let is_account = caller.service_account().is_some();
                let node = wanted.node();
                by_name_alone && is_account && node.is_some() && caller.node_of_pod() == node
            }
            Self::ArbitraryNode => by_name_alone && wanted.node().is_some(),
            Self::ServiceAccount => by_name_alone && wanted.service_account().is_some(),
            Self::UserInfo => wanted.node().is_none() && wanted.service_account().is_none(),
            Self::Legacy => true,
        }
    }
}

/// The check of one mode.
pub(super) struct Check<'a, 'c> {
    mode: Mode,
    wanted: &'a WantedUser,
    caller: Arc<UserInfo>,
    access: &'a mut AccessCheck<'c>,
}

impl<'a, 'c> Check<'a, 'c> {
    /// Prepares the check of a mode, which must apply.
    pub(super) fn new(
        mode: Mode,
        wanted: &'a WantedUser,
        caller: &Arc<UserInfo>,
        access: &'a mut AccessCheck<'c>,
    ) -> Self {
        // An authorizer decides on the account, whatever node it is on: that it is on the node it
        // wants to be was found out already.
        let caller = match mode {
            Mode::AssociatedNode => Arc::new(UserInfo {
                extra: vec![(
                    ASSOCIATED_NODE_KEYS.into(),
                    caller.extra.iter().map(|(key, _)| key.clone()).collect(),
                )],
                ..UserInfo::clone(caller)
            }),
            _ => Arc::clone(caller),
        };
        Self {
            mode,
            wanted,
            caller,
            access,
        }
    }

    /// Returns the user that the caller becomes.
    ///
    /// # Errors
    /// Returns 403 if the mode does not let the caller through, 503 or 504 if the plane cannot be
    /// read here.
    pub(super) async fn run(mut self, requested: &Attributes<'_>) -> Result<UserInfo, ApiError> {
        if let Some(verb) = self.mode.verb_on(requested.verb) {
            let passed = self.access.pass(&self.caller, &verb, requested.subject);
            passed.await?;
        }
        self.check_name().await?;
        self.check_uid().await?;
        self.check_groups().await?;
        self.check_extra().await?;
        Ok(self.user())
    }

    async fn check_name(&mut self) -> Result<(), ApiError> {
        let wanted = self.wanted;
        let of_users = |resource| Right::new(self.mode.group(), resource);
        let right = match (wanted.service_account(), wanted.node()) {
            (Some((namespace, name)), _) => Right {
                namespace,
                name,
                ..of_users("serviceaccounts")
            },
            (None, Some(_)) if self.mode == Mode::AssociatedNode => of_users("nodes").named("*"),
            (None, Some(node)) if self.mode.is_constrained() => of_users("nodes").named(node),
            (None, _) => of_users("users").named(&wanted.name),
        };
        self.pass(right).await
    }

    async fn check_uid(&mut self) -> Result<(), ApiError> {
        let wanted = self.wanted;
        if wanted.uid.is_empty() {
            return Ok(());
        }
        let right = Right::new(AUTHENTICATION, "uids").named(&wanted.uid);
        self.pass(right).await
    }

    async fn check_groups(&mut self) -> Result<(), ApiError> {
        let groups = &self.wanted.groups;
        let right = Right::new(self.mode.group(), "groups");
        if self.mode.is_constrained() {
            for (refused, group) in [
                ("the empty string", ""),
                ("the system:masters", SYSTEM_MASTERS),
            ] {
                if groups.iter().any(|wanted| wanted == group) {
                    let why = format!("impersonating {refused} group is not allowed");
                    return Err(self.refusal(right.named(group), &why));
                }
            }
            if groups.len() >= MANY && self.passes(right.named("*")).await? {
                return Ok(());
            }
        }
        for group in groups {
            self.pass(right.named(group)).await?;
        }
        Ok(())
    }

    async fn check_extra(&mut self) -> Result<(), ApiError> {
        let extra = &self.wanted.extra;
        let right = Right::new(AUTHENTICATION, "userextras");
        if self.mode.is_constrained() {
            if let Some(why) = extra.iter().find_map(wrong_extra) {
                return Err(self.refusal(right, &why));
            }
            let values = extra.iter().map(|(_, values)| values.len()).sum::<usize>();
            let all = Right {
                subresource: "*",
                ..right.named("*")
            };
            if values >= MANY && self.passes(all).await? {
                return Ok(());
            }
        }
        for (key, values) in extra {
            let right = Right {
                subresource: key,
                ..right
            };
            for value in values {
                self.pass(right.named(value)).await?;
            }
        }
        Ok(())
    }

    async fn pass(&mut self, right: Right<'_>) -> Result<(), ApiError> {
        let passed = self
            .access
            .pass(&self.caller, self.mode.verb(), right.subject());
        passed.await
    }

    async fn passes(&mut self, right: Right<'_>) -> Result<bool, ApiError> {
        match self.pass(right).await {
            Ok(()) => Ok(true),
            Err(refused) if refused.code == 403 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn refusal(&self, right: Right<'_>, why: &str) -> ApiError {
        let attributes = Attributes {
            user: &self.caller,
            verb: self.mode.verb(),
            subject: right.subject(),
        };
        forbidden(&attributes, why)
    }

    /// Returns the wanted user with the groups that follow from the name.
    fn user(&self) -> UserInfo {
        let wanted = self.wanted;
        let mut groups: Vec<Str> = wanted.groups.iter().map(Str::from).collect();
        if self.mode.is_constrained() && wanted.node().is_some() {
            groups = vec![NODES.into()];
        }
        if let (true, Some((namespace, _))) = (groups.is_empty(), wanted.service_account()) {
            groups.push("system:serviceaccounts".into());
            groups.push(format!("system:serviceaccounts:{namespace}").into());
        }
        let implied =
            match wanted.name == ANONYMOUS || groups.iter().any(|one| one == ALL_UNAUTHENTICATED) {
                true => ALL_UNAUTHENTICATED,
                false => ALL_AUTHENTICATED,
            };
        if !groups.iter().any(|group| group == implied) {
            groups.push(implied.into());
        }
        let extra = wanted.extra.iter().map(|(key, values)| {
            let values = values.iter().map(Str::from).collect();
            (Str::from(key), values)
        });
        UserInfo {
            name: wanted.name.as_str().into(),
            uid: wanted.uid.as_str().into(),
            groups,
            extra: extra.collect(),
            is_foreign: false,
        }
    }
}

/// Something that a caller must have the right to be.
#[derive(Clone, Copy)]
struct Right<'a> {
    group: &'a str,
    resource: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Right<'a> {
    const fn new(group: &'a str, resource: &'a str) -> Self {
        Self {
            group,
            resource,
            subresource: "",
            namespace: "",
            name: "",
        }
    }

    const fn named(self, name: &'a str) -> Self {
        Self { name, ..self }
    }

    const fn subject(self) -> Subject<'a> {
        Subject::Resource {
            group: self.group,
            version: "v1",
            resource: self.resource,
            subresource: self.subresource,
            namespace: self.namespace,
            name: self.name,
            field_selector: "",
        }
    }
}

/// Returns why a constrained mode does not allow an extra value, whoever asks.
fn wrong_extra((key, values): &(String, Vec<String>)) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    if let Some(why) = not_prefixed_by_a_domain(key) {
        return Some(format!(
            "impersonating an invalid key in extra is not allowed: {why}"
        ));
    }
    if *key != key.to_lowercase() {
        let key = quote(key);
        return Some(format!(
            "impersonating a non-lowercase key in extra is not allowed: {key}"
        ));
    }
    let is_empty = values.iter().any(String::is_empty);
    is_empty.then(|| "impersonating the empty string value in extra is not allowed".to_owned())
}

fn not_prefixed_by_a_domain(key: &str) -> Option<String> {
    let parent = Path::new("extra");
    let path = parent.child("key");
    let mut errors = Vec::new();
    let (domain, rest) = key.split_once('/').unwrap_or((key, ""));
    if domain.is_empty() || rest.is_empty() {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(FieldError::invalid(&path, key, why));
        return aggregate(&errors);
    }
    for why in names::dns1123_subdomain(domain) {
        errors.push(FieldError::invalid(&path, domain, why));
    }
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || PATH_MARKS.contains(&byte);
    if !rest.bytes().all(is_path) {
        let pattern = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
        let why = names::regex_complaint("Invalid path", pattern, &[]);
        errors.push(FieldError::invalid(&path, rest, why));
    }
    aggregate(&errors)
}
