//! An ordinary user for the load: a service account with a token and a role.

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};

use crate::lane::Content;
use crate::objects::text;
use crate::target::Target;

const NAMESPACE: &str = "default";
const NAME: &str = "bench";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
/// What the scenarios use, by group.
const RESOURCES: [(&str, &[&str]); 4] = [
    ("", &["namespaces", "configmaps"]),
    ("apps", &["deployments", "deployments/status"]),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("bench.polyplane.dev", &["widgets"]),
];

impl Target {
    /// Returns the same server for a service account, whose role lets it do what the scenarios do
    /// and nothing else.
    ///
    /// # Errors
    /// Returns an error if the server refuses one of the objects, or the token.
    pub async fn as_account(&self) -> Result<Self> {
        let lane = self.lane();
        let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
        let metadata = json!({"name": NAME});
        lane.create(&accounts, text(&json!({"metadata": metadata})))
            .await?;
        let verbs = [
            "get", "list", "watch", "create", "update", "patch", "delete",
        ];
        let rules = RESOURCES.map(|(group, resources)| {
            json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
        });
        let role = json!({"metadata": metadata, "rules": rules});
        lane.create(ROLES, text(&role)).await?;
        let binding = json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": NAME}]
        });
        lane.create(BINDINGS, text(&binding)).await?;
        let path = format!("{accounts}/{NAME}/token");
        let asked = json!({"spec": {"expirationSeconds": 6 * 3600}});
        let body = Content::Json(text(&asked));
        let answer = lane.call(Method::POST, &path, body).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let token = answer["status"]["token"].as_str();
        let token = token.context("an answer without a token")?;
        let endpoint = lane.endpoint().with_token(Some(token));
        Self::connect(
            &self.label,
            &endpoint,
            self.processes.clone(),
            self.lanes.len(),
        )
        .await
    }
}
