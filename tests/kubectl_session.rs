//! A user's session with the real kubectl, from an empty folder to a deleted control plane.

#[path = "kubectl_session/names.rs"]
mod names;

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::process::Up;
use polyplane_tests::session::{Session, begin, contains, json_of, manifests, with_manifests};
use serde_json::Value;

#[tokio::test]
async fn manifests_are_applied_and_shown_in_every_form() -> Result<()> {
    let session = begin().await?;
    let (team, server) = (&session.team, &session.server);
    let folder = manifests();
    let folder = folder.to_string_lossy();
    let applied = team.ok(&["apply", "-f", &folder])?;
    let created = applied
        .lines()
        .filter(|line| line.ends_with(" created"))
        .count();
    ensure!(
        created == applied.lines().count() && created >= 25,
        "{applied}"
    );
    let again = team.ok(&["apply", "-f", &folder])?;
    // kubectl sends these again, also to upstream: it cannot merge their lists and selectors.
    let sent = [
        "secret/db-credentials",
        "poddisruptionbudget.policy/web",
        "networkpolicy.networking.k8s.io/web",
        "statefulset.apps/db",
    ];
    let other: Vec<&str> = again
        .lines()
        .filter(|line| !line.ends_with(" unchanged"))
        .collect();
    ensure!(
        other.iter().all(|line| sent
            .iter()
            .any(|name| *line == format!("{name} configured"))),
        "applied again: {other:?}"
    );
    let generations = team.ok(&[
        "get",
        "pdb,netpol,sts,deploy",
        "-n",
        "shop",
        "-o",
        "jsonpath={.items[*].metadata.generation}",
    ])?;
    ensure!(
        generations == "1 1 1 1",
        "applying again changed nothing: {generations}"
    );
    // The first output that a user sees.
    let all = team.ok(&[
        "get",
        "all,cm,secret,sa,role,ing,hpa,pdb,netpol,pvc,quota,limits",
        "-A",
        "-o",
        "wide",
    ])?;
    contains(
        &all,
        &[
            "deployment.apps/web",
            "0/3",
            "nginx:1.27",
            "app=web",
            "service/web",
            "NodePort",
            "80:3",
        ],
    )?;
    contains(
        &all,
        &[
            "statefulset.apps/db",
            "0/2",
            "daemonset.apps/log-agent",
            "cronjob.batch/backup",
            "15 3 * * *",
        ],
    )?;
    contains(
        &all,
        &[
            "job.batch/seed",
            "secret/web-tls",
            "kubernetes.io/tls",
            "role.rbac.authorization.k8s.io/",
        ],
    )?;
    contains(
        &all,
        &[
            "ingress.networking.k8s.io/web",
            "shop.example.com",
            "80, 443",
            "Deployment/web",
            "Europe/Berlin",
        ],
    )?;
    contains(
        &all,
        &[
            "poddisruptionbudget.policy/web",
            "25%",
            "persistentvolumeclaim/uploads",
            "Pending",
        ],
    )?;
    let names = team.ok(&["get", "deploy,svc,sts", "-n", "shop", "-o", "name"])?;
    let expected = "deployment.apps/web\nservice/db\nservice/web\nstatefulset.apps/db\n";
    ensure!(names == expected, "{names}");
    let json = json_of(&team.ok(&["get", "deploy", "web", "-n", "shop", "-o", "json"])?)?;
    ensure!(
        json["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent",
        "{json}"
    );
    ensure!(json["spec"]["progressDeadlineSeconds"] == 600 && json["metadata"]["generation"] == 1);
    let yaml = team.ok(&["get", "deploy", "web", "-n", "shop", "-o", "yaml"])?;
    let yaml: Value = serde_saphyr::from_str(&yaml)?;
    ensure!(yaml == json, "YAML and JSON show the same object");
    let path = "jsonpath={range .items[*]}{.metadata.name}={.spec.type}{\"\\n\"}{end}";
    let shown = team.ok(&["get", "svc", "-n", "shop", "-o", path])?;
    ensure!(shown == "db=ClusterIP\nweb=NodePort\n", "{shown}");
    let columns =
        "custom-columns=NAME:.metadata.name,IMAGES:.spec.template.spec.containers[*].image";
    let shown = team.ok(&["get", "deploy", "-n", "shop", "-o", columns])?;
    contains(
        &shown,
        &[
            "NAME",
            "IMAGES",
            "nginx:1.27,registry.example.com/shop/exporter@sha256:",
        ],
    )?;
    let template = "go-template={{range .items}}{{.metadata.name}} {{end}}";
    let shown = team.ok(&["get", "cm", "-n", "shop", "-o", template])?;
    ensure!(shown == "kube-root-ca.crt web-config ", "{shown}");
    let shown = team.ok(&[
        "get",
        "secret",
        "db-credentials",
        "-n",
        "shop",
        "-o",
        "jsonpath={.data.username}",
    ])?;
    ensure!(shown == "c2hvcA==", "stringData was taken in: {shown}");
    let sorted = team.ok(&[
        "get",
        "clusterrole",
        "--sort-by=.metadata.name",
        "-o",
        "name",
        "--chunk-size=1",
    ])?;
    let whole = team.ok(&["get", "clusterrole", "-o", "name"])?;
    ensure!(
        sorted == whole && whole.lines().count() > 50,
        "paged one by one and whole are the same"
    );
    let selected = team.ok(&[
        "get",
        "all",
        "-n",
        "shop",
        "-l",
        "app.kubernetes.io/part-of in (shop)",
        "-o",
        "name",
    ])?;
    contains(&selected, &["deployment.apps/web", "job.batch/seed"])?;
    let field = "--field-selector=metadata.namespace=shop,type=kubernetes.io/tls";
    let selected = team.ok(&["get", "secret", "-A", field, "--no-headers"])?;
    ensure!(
        selected.lines().count() == 1 && selected.contains("web-tls"),
        "{selected}"
    );
    let labels = team.ok(&[
        "get",
        "deploy",
        "-n",
        "shop",
        "--show-labels",
        "-L",
        "app.kubernetes.io/name",
    ])?;
    contains(
        &labels,
        &["NAME", "LABELS", "app.kubernetes.io/part-of=shop"],
    )?;
    contains(
        &team.fails(&["get", "cm", "nothing"])?,
        &["Error from server (NotFound): configmaps \"nothing\" not found"],
    )?;
    ensure!(!server.log()?.contains("panicked"), "{}", server.log()?);
    Ok(())
}

#[tokio::test]
async fn everything_is_described_and_explained() -> Result<()> {
    let session = with_manifests().await?;
    let (team, server) = (&session.team, &session.server);
    let described = team.ok(&[
        "describe",
        "deploy,svc,ing,cronjob,sts,ds,job,hpa,pdb,netpol,quota,limits,pvc,sa",
        "-n",
        "shop",
    ])?;
    contains(
        &described,
        &[
            "Selector:               app=web",
            "0 updated | 0 total",
            "Liveness:   tcp-socket :8080",
        ],
    )?;
    contains(
        &described,
        &["shop.example.com", "Concurrency Policy", "Max unavailable"],
    )?;
    let described = team.ok(&["describe", "secret,cm,role,rolebinding", "-n", "shop"])?;
    contains(
        &described,
        &[
            "password:  19 bytes",
            "nginx.conf:",
            "config-reader",
            "ServiceAccount  web   shop",
        ],
    )?;
    let described = team.ok(&["describe", "ns", "shop"])?;
    contains(
        &described,
        &["Status:       Active", "Resource Quotas", "Resource Limits"],
    )?;
    let described = team.ok(&[
        "describe",
        "clusterrole",
        "shop-observer",
        "system:discovery",
    ])?;
    contains(&described, &["[/metrics]", "PolicyRule"])?;
    contains(
        &team.ok(&["explain", "deployment.spec.strategy.rollingUpdate.maxSurge"])?,
        &["KIND:       Deployment", "FIELD: maxSurge <IntOrString>"],
    )?;
    contains(
        &team.ok(&["explain", "cronjob", "--recursive"])?,
        &["concurrencyPolicy", "jobTemplate"],
    )?;
    contains(
        &team.fails(&["explain", "pod.spec.nothing"])?,
        &["field \"nothing\" does not exist"],
    )?;
    let resources = team.ok(&["api-resources", "-o", "wide"])?;
    contains(
        &resources,
        &[
            "deployments",
            "deploy",
            "apps/v1",
            "horizontalpodautoscalers",
            "networkpolicies",
            "create,delete,deletecollection,get,list,patch,update,watch",
            "all",
        ],
    )?;
    ensure!(
        !resources.contains("controlplanes"),
        "a tenant has no planes of its own"
    );
    // `kubectl explain` knows every kind.
    for line in team
        .ok(&["api-resources", "--verbs=list", "--no-headers"])?
        .lines()
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, .., version, _, kind] = words[..] else {
            bail!("an odd line: {line}")
        };
        let text = team.ok(&["explain", name, &format!("--api-version={version}")])?;
        contains(
            &text,
            &[&format!("KIND:       {kind}\n"), "VERSION:", "FIELDS:"],
        )
        .with_context(|| line.to_owned())?;
        // kubectl shows this in place of a description.
        ensure!(!text.contains("<empty>"), "{line}: {text}");
    }
    let spec = team.ok(&["explain", "pod.spec.containers.resources"])?;
    contains(&spec, &["DESCRIPTION:\n    ", "compute resources"])?;
    let versions = team.ok(&["api-versions"])?;
    contains(
        &versions,
        &[
            "apps/v1\n",
            "batch/v1\n",
            "networking.k8s.io/v1\n",
            "rbac.authorization.k8s.io/v1\n",
            "v1\n",
        ],
    )?;
    let version = team.ok(&["version", "-o", "json"])?;
    ensure!(
        json_of(&version)?["serverVersion"]["major"] == "1",
        "{version}"
    );
    contains(
        &team.ok(&["cluster-info"])?,
        &["Kubernetes control plane", "is running at"],
    )?;
    // With the root's kubeconfig, raw paths reach the root. With a plane's kubeconfig, older
    // releases of kubectl leave out the path prefix of the plane, and newer ones keep it.
    let root = team.with_kubeconfig(&server.kubeconfig);
    ensure!(team.ok(&["get", "--raw", "/readyz"])? == "ok");
    contains(
        &root.ok(&["get", "--raw", "/readyz?verbose"])?,
        &[
            "[+]ping ok",
            "[+]informer-sync ok",
            "[+]poststarthook/rbac/bootstrap-roles ok",
            "readyz check passed",
        ],
    )?;
    let raw = json_of(&root.ok(&[
        "get",
        "--raw",
        "/clusters/team-a/api/v1/namespaces/shop/services/web",
    ])?)?;
    ensure!(raw["spec"]["ports"][1]["targetPort"] == 8443);
    contains(
        &root.fails(&["get", "--raw", "/clusters/team-a/api/v1/nothing"])?,
        &["(NotFound)"],
    )?;
    contains(
        &root.ok(&["get", "--raw", "/metrics"])?,
        &[
            "apiserver_request_total",
            "polyplane_planes_owned",
            "polyplane_fence_epoch_max",
            "polyplane_fence_conflicts_total",
            "polyplane_read_lease_margin_seconds",
            "polyplane_commits_total{outcome=\"applied\"}",
            "polyplane_commit_writes_bucket{le=\"1\"}",
            "polyplane_commit_duration_seconds_count",
            "polyplane_hand_off_duration_seconds_count",
            "polyplane_plane_take_duration_seconds_count{waited=\"true\"}",
        ],
    )?;
    // `kubectl auth can-i`.
    ensure!(
        team.ok(&["auth", "can-i", "create", "deployments", "-n", "shop"])?
            .trim()
            == "yes"
    );
    contains(&team.ok(&["auth", "whoami"])?, &["admin", "system:masters"])?;
    // `kubectl events`.
    let event = r#"{"apiVersion":"v1","kind":"Event","metadata":{"name":"web.1","namespace":"shop"},"type":"Warning","reason":"Unhealthy",
      "message":"it does not answer","involvedObject":{"apiVersion":"apps/v1","kind":"Deployment","namespace":"shop","name":"web"},
      "firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z","count":3,"source":{"component":"test"}}"#;
    team.ok_with(&["create", "-f", "-"], event)?;
    contains(
        &team.ok(&["events", "-n", "shop", "--for", "deploy/web"])?,
        &["Warning", "Unhealthy", "it does not answer"],
    )?;
    contains(
        &team.ok(&["get", "events", "-n", "shop", "-o", "wide"])?,
        &["deployment/web", "Unhealthy"],
    )?;
    let selected = team.ok(&[
        "get",
        "events",
        "-n",
        "shop",
        "--field-selector",
        "involvedObject.name=web,type=Warning",
        "-o",
        "name",
    ])?;
    ensure!(selected == "event/web.1\n", "{selected}");
    ensure!(!server.log()?.contains("panicked"), "{}", server.log()?);
    Ok(())
}

#[tokio::test]
async fn a_deleted_namespace_is_emptied_and_goes() -> Result<()> {
    let session = with_manifests().await?;
    let team = &session.team;
    let said = team.ok(&["delete", "namespace", "shop", "--timeout=40s"])?;
    contains(&said, &["namespace \"shop\" deleted"])?;
    contains(
        &team.fails(&["get", "ns", "shop"])?,
        &["namespaces \"shop\" not found"],
    )?;
    for kind in team
        .ok(&[
            "api-resources",
            "--verbs=list",
            "--namespaced",
            "-o",
            "name",
        ])?
        .lines()
    {
        let left = team.ok(&["get", kind, "-n", "shop", "-o", "name"])?;
        ensure!(left.is_empty(), "{kind} left behind: {left}");
    }
    // Cluster-wide objects stay, and the namespace's name can be used again at once.
    team.ok(&[
        "get",
        "clusterrole/shop-observer",
        "priorityclass/shop-critical",
        "storageclass/shop-fast",
    ])?;
    contains(
        &team.ok(&["apply", "-f", &manifests().to_string_lossy()])?,
        &["namespace/shop created", "deployment.apps/web created"],
    )?;
    Ok(())
}

#[tokio::test]
async fn planes_are_managed_with_the_plugin() -> Result<()> {
    let Session {
        server,
        folder,
        root,
        team,
    } = begin().await?;
    let said = root.run(&["plane", "create", "team-b", "--protect"])?;
    ensure!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    contains(
        &String::from_utf8_lossy(&said.stdout),
        &["controlplane.polyplane.dev/team-b created"],
    )?;
    contains(
        &root.fails(&["plane", "create", "team-b"])?,
        &["already exists"],
    )?;
    contains(
        &root.fails(&["plane", "create", "Not_A_Name"])?,
        &["Invalid value: \"Not_A_Name\""],
    )?;
    contains(
        &root.ok(&["plane", "list"])?,
        &["NAME", "READY", "team-a", "team-b", "True"],
    )?;
    contains(
        &root.ok(&["plane", "get", "team-b"])?,
        &["Protected:   yes", "/clusters/team-b", "Ready=True"],
    )?;
    contains(
        &root.ok(&["get", "controlplanes", "-o", "wide"])?,
        &["team-a", "team-b", "True", "/clusters/team-a"],
    )?;
    contains(
        &root.ok(&["explain", "controlplane.spec"])?,
        &["deletionProtection"],
    )?;
    contains(
        &root.ok(&["describe", "controlplane", "team-b"])?,
        &["Deletion Protection:", "Type:", "Ready"],
    )?;
    // `kubectl plane use` switches the current context.
    contains(&root.ok(&["plane", "use", "team-b"])?, &["team-b"])?;
    root.ok(&["create", "configmap", "in-b"])?;
    contains(&team.fails(&["get", "cm", "in-b"])?, &["NotFound"])?;
    root.ok(&["plane", "use", "root"])?;
    contains(
        &root.ok(&["get", "controlplanes", "-o", "name"])?,
        &["controlplane.polyplane.dev/team-b"],
    )?;
    contains(
        &root.fails(&["plane", "use", "nobody"])?,
        &["\"nobody\" not found"],
    )?;
    contains(
        &root.fails(&["plane", "kubeconfig", "nobody"])?,
        &["\"nobody\" not found"],
    )?;
    // Without a flag that says for whom, nobody gets an administrator's credentials by accident.
    contains(
        &root.fails(&["plane", "kubeconfig", "team-b"])?,
        &[
            "kubeconfig team-b: say for whom",
            "--user NAME",
            "--admin",
            "kubectl plane use team-b",
        ],
    )?;
    ensure!(
        root.run(&["plane", "kubeconfig", "team-b"])?
            .stdout
            .is_empty(),
        "credentials on standard output"
    );
    names::names_that_are_no_text_elsewhere(&root)?;
    names::no_context_is_current_once_its_plane_is_deleted(&root)?;
    // A protected plane cannot be deleted until its protection is switched off.
    contains(
        &root.fails(&["plane", "delete", "team-b", "--yes"])?,
        &["deletion protection", "deletionProtection"],
    )?;
    contains(
        &root.fails(&["delete", "controlplane", "team-b"])?,
        &["Forbidden", "deletion protection"],
    )?;
    root.ok(&["--context=team-b", "get", "cm", "in-b"])?;
    root.ok(&[
        "patch",
        "controlplane",
        "team-b",
        "--type=merge",
        "-p",
        r#"{"spec":{"deletionProtection":false}}"#,
    ])?;
    // Without --yes the command asks for confirmation, and an empty answer means no.
    contains(
        &root.fails(&["plane", "delete", "team-b"])?,
        &["cannot be undone", "not deleted"],
    )?;
    contains(
        &root.ok_with(&["plane", "delete", "team-b"], "team-b\n")?,
        &["team-b deleted"],
    )?;
    contains(
        &root.fails(&["plane", "get", "team-b"])?,
        &["\"team-b\" not found"],
    )?;
    // After a deletion, no value of the plane can be found in the store's files any more.
    for index in 0..5 {
        team.ok(&[
            "create",
            "configmap",
            &format!("m{index}"),
            "--from-literal=k=treasure-of-team-a",
        ])?;
    }
    contains(
        &root.ok(&["plane", "delete", "team-a", "--yes"])?,
        &["team-a deleted"],
    )?;
    contains(&team.fails(&["get", "cm"])?, &["not found"])?;
    contains(
        &root
            .ok(&["get", "controlplanes"])
            .map(|_| root.run(&["get", "controlplanes"]))?
            .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())?,
        &["No resources found"],
    )?;
    ensure!(server.stop().await?.success());
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = Kubectl::find(
        &server.kubeconfig,
        folder.path(),
        &folder.path().join("data/bin"),
    )?;
    let output = root.run(&["get", "controlplanes"])?;
    contains(
        &String::from_utf8_lossy(&output.stderr),
        &["No resources found"],
    )?;
    root.ok(&["plane", "create", "team-a"])?;
    let config = json_of(&root.ok(&["config", "view", "--raw", "-o", "json"])?)?;
    if config["contexts"].as_array().is_none_or(Vec::is_empty) {
        bail!("no contexts: {config}");
    }
    let path = folder.path().join("again.kubeconfig");
    fs::write(
        &path,
        root.ok(&["plane", "kubeconfig", "team-a", "--with-my-credentials"])?,
    )?;
    let left = root
        .with_kubeconfig(&path)
        .ok(&["get", "cm", "-A", "-o", "yaml"])?;
    ensure!(
        !left.contains("treasure") && !left.contains("name: m0"),
        "{left}"
    );
    Ok(())
}
