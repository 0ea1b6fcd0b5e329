//! The metrics of authentication, authorization and admission: what requests to one plane add to those
//! of the process, by upstream's names and labels.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use http::{HeaderValue, Method};
use polyplane_tests::client::Client;
use polyplane_tests::connection::{Ask, Connection};
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use polyplane_tests::process::Up;
use polyplane_tests::programs::{ask, create_plane};
use serde_json::{Value, json};

const NAMESPACES: &str = "/api/v1/namespaces";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
/// Looks like an address, so that she would be counted as one if she was counted.
const JANE: &str = "jane@example.com";
const MERGE: &str = "application/merge-patch+json";
/// Families whose labels may have few values.
const FAMILIES: [&str; 11] = [
    "apiserver_admission_controller_admission_duration_seconds",
    "apiserver_admission_step_admission_duration_seconds",
    "apiserver_authorization_decisions_total",
    "authenticated_user_requests",
    "authentication_attempts",
    "authentication_duration_seconds",
    "authorization_attempts_total",
    "authorization_duration_seconds",
    "pod_security_errors_total",
    "pod_security_evaluations_total",
    "pod_security_exemptions_total",
];

struct Site {
    root: Client,
    admin: Client,
    plane: Endpoint,
    _server: Up,
    _folder: tempfile::TempDir,
}

impl Site {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // One replica, so that all requests are counted at the one that is asked for the numbers.
        let server = Up::start(&folder.path().join("data"), &["--replicas=1"]).await?;
        let plane = create_plane(&server.root()?, "team").await?;
        Ok(Self {
            root: Client::open(&server.root()?).await?,
            admin: Client::open(&plane).await?,
            plane,
            _server: server,
            _folder: folder,
        })
    }

    /// Returns the value of each series.
    async fn series(&self) -> Result<BTreeMap<String, f64>> {
        let answer = self.root.raw(ask(Method::GET, "/metrics", &Value::Null));
        let text = String::from_utf8(answer.await?.body.to_vec())?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let parsed = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').context("no value")?;
            Ok((series.to_owned(), value.parse()?))
        });
        parsed.collect()
    }

    /// Sends requests, and checks by how much each of these series grows. The first request for the
    /// metrics is among what is counted.
    async fn adds(
        &self,
        sent: impl Future<Output = Result<()>>,
        growth: &[(&str, f64)],
    ) -> Result<()> {
        let before = self.series().await?;
        sent.await?;
        let after = self.series().await?;
        for (series, wanted) in growth {
            let value = |all: &BTreeMap<String, f64>| all.get(*series).copied().unwrap_or(0.0);
            let grown = value(&after) - value(&before);
            ensure!(
                grown == *wanted,
                "{series} grew by {grown}, not by {wanted}"
            );
        }
        Ok(())
    }

    async fn create_namespace(&self, name: &str, labels: Value) -> Result<()> {
        let body = json!({"metadata": {"name": name, "labels": labels}});
        self.admin.post(NAMESPACES, &body).await?.expect(201)?;
        Ok(())
    }

    /// Sends a GET with another bearer token, or with none. Returns the status.
    async fn get_with(&self, token: Option<&str>, path: &str) -> Result<u16> {
        let endpoint = self.plane.with_token(token);
        let caller = match token {
            Some(_) => Caller::Admin,
            None => Caller::Anonymous,
        };
        let connection = Connection::open(&endpoint, caller, Protocol::Http2).await?;
        let answer = connection.send(ask(Method::GET, path, &Value::Null));
        Ok(answer.await?.status.as_u16())
    }
}

fn as_jane(path: &str) -> Ask {
    let mut asked = ask(Method::GET, path, &Value::Null);
    asked.headers = vec![("impersonate-user".to_owned(), JANE.to_owned())];
    asked
}

fn pod(name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["containers"] = json!([{"name": "c", "image": "example.com/c:1"}]);
    json!({"metadata": {"name": name}, "spec": spec})
}

fn plugin(name: &str, operation: &str, rejected: bool, phase: &str) -> String {
    let family = "apiserver_admission_controller_admission_duration_seconds";
    format!(
        "{family}_count{{name=\"{name}\",operation=\"{operation}\",rejected=\"{rejected}\",type=\"{phase}\"}}"
    )
}

fn evaluation(labels: [&str; 6]) -> String {
    let [decision, mode, level, version, operation, resource] = labels;
    format!(
        "pod_security_evaluations_total{{decision=\"{decision}\",mode=\"{mode}\",policy_level=\"{level}\",\
         policy_version=\"{version}\",request_operation=\"{operation}\",resource=\"{resource}\",subresource=\"\"}}"
    )
}

#[tokio::test]
async fn who_calls_and_what_is_decided_is_counted() -> Result<()> {
    let site = Site::start().await?;
    let result = |family: &str, result: &str| format!("{family}{{result=\"{result}\"}}");
    let attempts = |of: &str| result("authentication_attempts", of);
    let timed = |of: &str| result("authentication_duration_seconds_count", of);
    let decided = |of: &str| result("authorization_attempts_total", of);
    let took = |of: &str| result("authorization_duration_seconds_count", of);
    let by_roles =
        r#"apiserver_authorization_decisions_total{decision="allowed",name="rbac",type="RBAC"}"#;
    let users = |class: &str| format!("authenticated_user_requests{{username=\"{class}\"}}");

    let read = async { site.admin.get(MAPS).await?.expect(200).map(drop) };
    let growth = [
        // With the request for the metrics.
        (&*attempts("success"), 2.0),
        (&*timed("success"), 2.0),
        // The root's administrator asks for the metrics, and has another name in the plane.
        (&*users("admin"), 1.0),
        (&*users("other"), 1.0),
        (&*decided("allowed"), 2.0),
        (&*took("allowed"), 2.0),
        (&*attempts("error"), 0.0),
        (&*attempts("failure"), 0.0),
        // Administrators need no role.
        (by_roles, 0.0),
    ];
    site.adds(read, &growth).await?;

    let strangers = async {
        ensure!(site.get_with(None, MAPS).await? == 401);
        ensure!(site.get_with(Some("no-such-token"), MAPS).await? == 401);
        Ok(())
    };
    let growth = [
        (&*attempts("failure"), 1.0),
        (&*timed("failure"), 1.0),
        (&*attempts("error"), 1.0),
        (&*timed("error"), 1.0),
        (&*attempts("success"), 1.0),
        (&*decided("allowed"), 1.0),
        (&*decided("no-opinion"), 0.0),
    ];
    site.adds(strangers, &growth).await?;

    let refused = async {
        ensure!(site.admin.raw(as_jane(MAPS)).await?.status == 403);
        Ok(())
    };
    let growth = [
        (&*attempts("success"), 2.0),
        // It is the administrator who calls.
        (&*users("admin"), 1.0),
        (&*users("other"), 1.0),
        (&*users("email_id"), 0.0),
        (&*decided("no-opinion"), 1.0),
        (&*took("no-opinion"), 1.0),
        (&*decided("denied"), 0.0),
        (by_roles, 0.0),
    ];
    site.adds(refused, &growth).await?;

    let binding = json!({"metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": JANE}]});
    site.admin.post(BINDINGS, &binding).await?.expect(201)?;
    let allowed = async {
        ensure!(site.admin.raw(as_jane(MAPS)).await?.status == 200);
        Ok(())
    };
    // Once, although the state that is read is judged, too.
    site.adds(allowed, &[(by_roles, 1.0), (&*decided("allowed"), 2.0)])
        .await
}

#[tokio::test]
async fn what_admission_does_is_counted() -> Result<()> {
    let site = Site::start().await?;
    let strict = json!({"pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/enforce-version": "v1.30",
        "pod-security.kubernetes.io/audit": "restricted"});
    site.create_namespace("narrow", strict).await?;
    let warned = json!({"pod-security.kubernetes.io/warn": "restricted"});
    site.create_namespace("warned", warned).await?;
    let pods = |namespace: &str| format!("{NAMESPACES}/{namespace}/pods");

    let refused = async {
        let body = pod("host", &json!({"hostNetwork": true}));
        let answer = site.admin.post(&pods("narrow"), &body).await?;
        answer.refuses(403, "violates PodSecurity")
    };
    let step = |operation: &str, rejected: bool, phase: &str| {
        let family = "apiserver_admission_step_admission_duration_seconds";
        format!(
            "{family}_count{{operation=\"{operation}\",rejected=\"{rejected}\",type=\"{phase}\"}}"
        )
    };
    let growth = [
        (
            &*evaluation(["deny", "enforce", "baseline", "v1.30", "create", "pod"]),
            1.0,
        ),
        (
            &*evaluation(["deny", "audit", "restricted", "latest", "create", "pod"]),
            1.0,
        ),
        (&*plugin("PodSecurity", "CREATE", true, "validate"), 1.0),
        (&*plugin("PodSecurity", "CREATE", false, "validate"), 0.0),
        (&*plugin("ServiceAccount", "CREATE", false, "admit"), 1.0),
        (&*plugin("NamespaceLifecycle", "CREATE", true, "admit"), 0.0),
        (&*step("CREATE", true, "validate"), 1.0),
        (&*step("CREATE", true, "admit"), 0.0),
    ];
    site.adds(refused, &growth).await?;

    let created = async {
        let sent = ask(Method::POST, &pods("warned"), &pod("plain", &json!({})));
        let answer = site.admin.raw(sent).await?;
        let warning = answer.headers.get("warning").map(HeaderValue::to_str);
        let warning = warning.context("no warning")??;
        ensure!(answer.status == 201 && warning.contains("would violate PodSecurity"));
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": pod("", &json!({}))["spec"]});
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        let body = json!({"metadata": {"name": "d"}, "spec": spec});
        let path = "/apis/apps/v1/namespaces/warned/deployments";
        site.admin.post(path, &body).await?.expect(201)?;
        let labels = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
        let path = format!("{}/plain", pods("warned"));
        let patched = site.admin.typed(Method::PATCH, &path, MERGE, labels);
        patched.await?.expect(200)?;
        Ok(())
    };
    let growth = [
        (
            &*evaluation(["allow", "enforce", "privileged", "latest", "create", "pod"]),
            1.0,
        ),
        (
            &*evaluation(["deny", "warn", "restricted", "latest", "create", "pod"]),
            1.0,
        ),
        (
            &*evaluation([
                "deny",
                "warn",
                "restricted",
                "latest",
                "create",
                "controller",
            ]),
            1.0,
        ),
        // The patch changes no container.
        (
            &*evaluation(["allow", "enforce", "privileged", "latest", "update", "pod"]),
            0.0,
        ),
        (&*plugin("PodSecurity", "CREATE", false, "validate"), 2.0),
        (&*plugin("PodSecurity", "UPDATE", false, "validate"), 1.0),
        (&*plugin("LimitRanger", "UPDATE", false, "admit"), 1.0),
        (&*plugin("LimitRanger", "UPDATE", false, "validate"), 1.0),
        // Upstream does not call it for an update.
        (&*plugin("RuntimeClass", "UPDATE", false, "validate"), 0.0),
        (&*step("CREATE", true, "validate"), 0.0),
    ];
    site.adds(created, &growth).await?;

    let elsewhere = async {
        let body = json!({"metadata": {"name": "x"}});
        let path = format!("{NAMESPACES}/none/configmaps");
        site.admin
            .post(&path, &body)
            .await?
            .refuses(404, "not found")
    };
    let growth = [
        (&*plugin("NamespaceLifecycle", "CREATE", true, "admit"), 1.0),
        (&*step("CREATE", true, "admit"), 1.0),
        (&*step("CREATE", true, "validate"), 0.0),
    ];
    site.adds(elsewhere, &growth).await?;
    bounded(&site.series().await?)
}

/// The names by which dashboards and alerts look for slow requests and for kinds that end.
#[tokio::test]
async fn service_levels_and_kinds_that_end_are_shown() -> Result<()> {
    let site = Site::start().await?;
    let labels = |resource: &str| {
        format!(
            "component=\"apiserver\",group=\"\",resource=\"{resource}\",scope=\"namespace\",subresource=\"\",verb=\"LIST\",version=\"v1\""
        )
    };
    let family = "apiserver_request_sli_duration_seconds";
    let counted = |resource: &str| format!("{family}_count{{{}}}", labels(resource));
    let within_a_minute =
        |resource: &str| format!("{family}_bucket{{{},le=\"60\"}}", labels(resource));
    let ends = "apiserver_requested_deprecated_apis{group=\"\",removed_release=\"\",resource=\"endpoints\",subresource=\"\",version=\"v1\"}";
    let endpoints = MAPS.replace("configmaps", "endpoints");
    let asked = async {
        for path in [MAPS, &endpoints, &endpoints] {
            site.admin.get(path).await?.expect(200)?;
        }
        Ok(())
    };
    let growth = [
        (&*counted("configmaps"), 1.0),
        (&*within_a_minute("configmaps"), 1.0),
        (&*counted("endpoints"), 2.0),
    ];
    site.adds(asked, &growth).await?;
    let series = site.series().await?;
    ensure!(series.get(ends) == Some(&1.0));
    let named: Vec<&String> = series
        .keys()
        .filter(|name| name.starts_with("apiserver_requested_deprecated_apis"))
        .collect();
    ensure!(
        named.iter().all(|name| !name.contains("configmaps")),
        "{named:?}"
    );
    Ok(())
}

/// Nothing names a tenant, and plug-ins that upstream does not have are not there.
fn bounded(series: &BTreeMap<String, f64>) -> Result<()> {
    let ours: Vec<&String> = series
        .keys()
        .filter(|name| FAMILIES.iter().any(|family| name.starts_with(family)))
        .collect();
    let exempt = ours
        .iter()
        .filter(|name| name.starts_with("pod_security_exemptions_total{"));
    ensure!(exempt.count() == 4);
    for text in [
        "team",
        JANE,
        "narrow",
        "warned",
        "plain",
        "PlaneAccess",
        "RoleEscalation",
    ] {
        let named = ours.iter().find(|name| name.contains(text));
        ensure!(named.is_none(), "{named:?}");
    }
    Ok(())
}
