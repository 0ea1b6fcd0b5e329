//! Objects that the real kubectl creates, changes, watches and waits for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use polyplane_tests::session::{Following, begin, contains, json_of, manifests, with_manifests};

#[tokio::test]
async fn objects_are_changed_in_every_way() -> Result<()> {
    let session = with_manifests().await?;
    let (team, folder) = (&session.team, &session.folder);
    let deploy = ["-n", "shop", "deploy/web"];
    let ok = |verb: &str, rest: &[&str]| team.ok(&[&[verb], &deploy[..], rest].concat());
    let value = |path: &str| ok("get", &["-o", &format!("jsonpath={path}")]);
    // `kubectl diff` exits with 1 and prints the difference if there is one, else with 0 and no
    // output.
    let file = manifests().join("30-web.yaml");
    ensure!(
        team.ok(&["diff", "-f", &file.to_string_lossy()])?
            .is_empty()
    );
    let changed = folder.path().join("web.yaml");
    fs::write(
        &changed,
        fs::read_to_string(&file)?.replace("replicas: 3\n", "replicas: 5\n"),
    )?;
    let changed = changed.to_string_lossy().into_owned();
    let diff = team.run(&["diff", "-f", &changed])?;
    ensure!(
        diff.status.code() == Some(1),
        "{}",
        String::from_utf8_lossy(&diff.stderr)
    );
    contains(
        &String::from_utf8_lossy(&diff.stdout),
        &[
            "-  replicas: 3",
            "+  replicas: 5",
            "-  generation: 1",
            "+  generation: 2",
        ],
    )?;
    ensure!(value("{.spec.replicas}")? == "3", "diff changes nothing");
    contains(
        &team.ok(&["apply", "-f", &changed])?,
        &["deployment.apps/web configured", "service/web unchanged"],
    )?;
    ensure!(value("{.spec.replicas} {.metadata.generation}")? == "5 2");
    // All three kinds of patch.
    ok(
        "patch",
        &[
            "--type=strategic",
            "-p",
            r#"{"spec":{"template":{"spec":{"containers":[{"name":"nginx","image":"nginx:1.28"}]}}}}"#,
        ],
    )?;
    ensure!(
        value("{.spec.template.spec.containers[*].name}")? == "nginx exporter",
        "lists are merged by key"
    );
    ensure!(value("{.spec.template.spec.containers[0].image}")? == "nginx:1.28");
    ok(
        "patch",
        &[
            "--type=merge",
            "-p",
            r#"{"metadata":{"annotations":{"a":"1","b":null}}}"#,
        ],
    )?;
    let operations = r#"[{"op":"test","path":"/spec/replicas","value":5},{"op":"replace","path":"/spec/replicas","value":4}]"#;
    ok("patch", &["--type=json", "-p", operations])?;
    ensure!(value("{.spec.replicas} {.metadata.annotations.a}")? == "4 1");
    let failed =
        team.fails(&[&["patch"], &deploy[..], &["--type=json", "-p", operations]].concat())?;
    contains(&failed, &["The request is invalid"])?;
    let wrong = r#"{"spec":{"replicas":-1,"selector":{"matchLabels":{"app":"other"}}}}"#;
    let failed = team.fails(&[&["patch"], &deploy[..], &["-p", wrong]].concat())?;
    contains(
        &failed,
        &[
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            "spec.selector",
            "field is immutable",
        ],
    )?;
    // The commands label, annotate, scale, set, edit and replace.
    contains(&ok("label", &["tier=front"])?, &["labeled"])?;
    let failed = team.fails(&[&["label"], &deploy[..], &["tier=back"]].concat())?;
    contains(&failed, &["already has a value (front)"])?;
    ok("label", &["tier=back", "--overwrite"])?;
    ok("label", &["app.kubernetes.io/name-"])?;
    ok("annotate", &["owner=checkout team"])?;
    ensure!(
        value("{.metadata.labels.tier} {.metadata.annotations.owner}")? == "back checkout team"
    );
    contains(
        &ok("scale", &["--replicas=7", "--current-replicas=4"])?,
        &["scaled"],
    )?;
    let failed = team.fails(
        &[
            &["scale"],
            &deploy[..],
            &["--replicas=1", "--current-replicas=4"],
        ]
        .concat(),
    )?;
    contains(&failed, &["Expected replicas to be 4, was 7"])?;
    ok("set", &["image", "x"])
        .err()
        .context("set wants a sub-command first")?;
    team.ok(&[
        "set",
        "image",
        "-n",
        "shop",
        "deploy/web",
        "nginx=nginx:1.29",
    ])?;
    team.ok(&[
        "set",
        "env",
        "-n",
        "shop",
        "deploy/web",
        "-c",
        "nginx",
        "LOG_LEVEL-",
        "MODE=fast",
    ])?;
    let environment = value("{.spec.template.spec.containers[0].env[*].name}")?;
    ensure!(environment == "POD_NAME MODE", "{environment}");
    let script = folder.path().join("editor");
    fs::write(
        &script,
        "#!/bin/sh\nsed -i 's/replicas: 7/replicas: 2/' \"$1\"\n",
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let editor = team.with_variable("EDITOR", &script.to_string_lossy());
    contains(
        &editor.ok(&["edit", "-n", "shop", "deploy/web"])?,
        &["deployment.apps/web edited"],
    )?;
    ensure!(value("{.spec.replicas} {.spec.template.spec.containers[0].image}")? == "2 nginx:1.29");
    let mut object = json_of(&ok("get", &["-o", "json"])?)?;
    object["spec"]["minReadySeconds"] = 9.into();
    contains(
        &team.ok_with(&["replace", "-f", "-"], &object.to_string())?,
        &["replaced"],
    )?;
    ensure!(value("{.spec.minReadySeconds}")? == "9");
    // The version at which the object was read is outdated now.
    let mut replace = team
        .command(&["replace", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    std::io::Write::write_all(
        &mut replace.stdin.take().context("no input")?,
        object.to_string().as_bytes(),
    )?;
    let refused = replace.wait_with_output()?;
    contains(
        &String::from_utf8_lossy(&refused.stderr),
        &["(Conflict)", "the object has been modified"],
    )?;
    // A dry run at the server shows the result and changes nothing.
    contains(
        &ok("scale", &["--replicas=9", "--dry-run=server"])?,
        &["scaled (server dry run)"],
    )?;
    ensure!(value("{.spec.replicas}")? == "2");
    team.ok(&["rollout", "pause", "-n", "shop", "deploy/web"])?;
    ensure!(value("{.spec.paused}")? == "true");
    // A wrong manifest is refused before any part of it is written.
    let typo = "# YAML\n{apiVersion: v1, kind: ConfigMap, metadata: {name: typo}, dta: {a: b}}";
    let wrong = folder.path().join("wrong.yaml");
    fs::write(&wrong, typo)?;
    let failed = team.fails(&["create", "-f", &wrong.to_string_lossy()])?;
    contains(&failed, &["strict decoding error: unknown field \"dta\""])?;
    team.fails(&["get", "cm", "typo"])?;
    Ok(())
}

#[tokio::test]
async fn waiting_and_watching_see_what_happens() -> Result<()> {
    let session = begin().await?;
    let team = &session.team;
    let watch = [
        "get",
        "cm",
        "--watch",
        "--request-timeout=60s",
        "--field-selector=metadata.name=watched",
        "--output-watch-events",
    ];
    team.ok(&["create", "configmap", "watched", "--from-literal=v=1"])?;
    let mut following = Following::start(team, &watch)?;
    ensure!(
        following
            .line()?
            .split_whitespace()
            .eq(["EVENT", "NAME", "DATA", "AGE"])
    );
    ensure!(
        following
            .line()?
            .split_whitespace()
            .take(3)
            .eq(["ADDED", "watched", "1"])
    );
    team.ok(&["patch", "cm", "watched", "-p", r#"{"data":{"w":"2"}}"#])?;
    ensure!(
        following
            .line()?
            .split_whitespace()
            .take(3)
            .eq(["MODIFIED", "watched", "2"])
    );
    team.ok(&["create", "configmap", "other", "--from-literal=v=x"])?;
    team.ok(&["delete", "cm", "watched"])?;
    ensure!(
        following
            .line()?
            .split_whitespace()
            .take(3)
            .eq(["DELETED", "watched", "2"])
    );
    drop(following);
    // A watch of a table.
    let web = "# YAML\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 2, selector: {matchLabels: {a: b}}, \
        template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}";
    team.ok_with(&["apply", "-f", "-"], web)?;
    let mut table = Following::start(team, &["get", "deploy", "-w", "--request-timeout=60s"])?;
    ensure!(table.line()?.split_whitespace().eq([
        "NAME",
        "READY",
        "UP-TO-DATE",
        "AVAILABLE",
        "AGE"
    ]));
    contains(&table.line()?, &["web", "0/2"])?;
    // `kubectl wait` for a condition, for a value, and for a deletion.
    let condition = r#"{"status":{"replicas":2,"readyReplicas":2,"conditions":[{"type":"Available","status":"True"}]}}"#;
    let mut waiting = Following::start(
        team,
        &[
            "wait",
            "deploy/web",
            "--for=condition=Available",
            "--timeout=30s",
        ],
    )?;
    let mut valued = Following::start(
        team,
        &[
            "wait",
            "deploy/web",
            "--for=jsonpath={.status.readyReplicas}=2",
            "--timeout=30s",
        ],
    )?;
    team.ok(&[
        "patch",
        "deploy",
        "web",
        "--subresource=status",
        "--type=merge",
        "-p",
        condition,
    ])?;
    contains(&waiting.line()?, &["deployment.apps/web condition met"])?;
    contains(&valued.line()?, &["deployment.apps/web condition met"])?;
    contains(&table.line()?, &["web", "2/2"])?;
    let mut ending = Following::start(
        team,
        &["wait", "deploy/web", "--for=delete", "--timeout=30s"],
    )?;
    contains(
        &team.ok(&["delete", "deploy", "web", "--cascade=background"])?,
        &["deleted"],
    )?;
    // If kubectl starts late, the object is already gone, and it prints nothing.
    let (said, success) = ending.finish()?;
    ensure!(
        success && (said.is_empty() || said.contains("deployment.apps/web condition met")),
        "{said}"
    );
    contains(
        &team.fails(&["wait", "cm/other", "--for=condition=Ready", "--timeout=1s"])?,
        &["timed out"],
    )?;
    // A finalizer keeps an object until it is removed.
    let held = "# YAML\n{apiVersion: v1, kind: ConfigMap, metadata: {name: held, finalizers: [example.com/hold]}}";
    team.ok_with(&["create", "-f", "-"], held)?;
    team.ok(&["delete", "cm", "held", "--wait=false"])?;
    ensure!(
        !team
            .ok(&[
                "get",
                "cm",
                "held",
                "-o",
                "jsonpath={.metadata.deletionTimestamp}"
            ])?
            .is_empty()
    );
    team.ok(&[
        "patch",
        "cm",
        "held",
        "--type=json",
        "-p",
        r#"[{"op":"remove","path":"/metadata/finalizers"}]"#,
    ])?;
    team.ok(&["wait", "cm/held", "--for=delete", "--timeout=20s"])?;
    Ok(())
}

#[tokio::test]
async fn objects_are_made_by_command() -> Result<()> {
    let session = begin().await?;
    let team = &session.team;
    let commands: [&[&str]; 15] = [
        &["create", "namespace", "made"],
        &[
            "create",
            "deployment",
            "web",
            "--image=nginx:1.27",
            "--replicas=2",
            "--port=80",
        ],
        &[
            "expose",
            "deployment",
            "web",
            "--port=80",
            "--target-port=8080",
        ],
        &["create", "service", "nodeport", "np", "--tcp=80:8080"],
        &["create", "configmap", "cm", "--from-literal=a=b"],
        &[
            "create",
            "secret",
            "generic",
            "s",
            "--from-literal=password=x",
        ],
        &["create", "serviceaccount", "bot"],
        &[
            "create",
            "role",
            "r",
            "--verb=get,list",
            "--resource=pods,deployments.apps",
        ],
        &[
            "create",
            "rolebinding",
            "rb",
            "--role=r",
            "--serviceaccount=default:bot",
        ],
        &["create", "job", "j", "--image=busybox", "--", "true"],
        &[
            "create",
            "cronjob",
            "cj",
            "--image=busybox",
            "--schedule=*/5 * * * *",
        ],
        &["create", "ingress", "ing", "--rule=example.com/*=web:80"],
        &["create", "quota", "q", "--hard=pods=10"],
        &[
            "create",
            "poddisruptionbudget",
            "pdb",
            "--selector=app=web",
            "--min-available=1",
        ],
        &[
            "autoscale",
            "deployment",
            "web",
            "--min=1",
            "--max=5",
            "--cpu-percent=80",
        ],
    ];
    for command in commands {
        let said = team.ok(command)?;
        ensure!(
            said.trim_end().ends_with("created")
                || said.contains("exposed")
                || said.contains("autoscaled"),
            "{command:?}: {said}"
        );
    }
    let pod = team.ok(&[
        "run",
        "tool",
        "--image=busybox",
        "--restart=Never",
        "--",
        "sleep",
        "1",
    ])?;
    contains(&pod, &["pod/tool created"])?;
    contains(
        &team.ok(&["get", "pod", "tool", "-o", "wide"])?,
        &["tool", "0/1", "Pending", "<none>"],
    )?;
    contains(
        &team.ok(&["describe", "pod", "tool"])?,
        &["busybox", "QoS Class:", "BestEffort"],
    )?;
    contains(
        &team.ok(&["get", "deploy,svc,hpa,ing"])?,
        &["0/2", "Deployment/web", "example.com"],
    )?;
    contains(
        &team.ok(&["delete", "pod", "tool", "--now", "--timeout=20s"])?,
        &["pod \"tool\" deleted"],
    )?;
    Ok(())
}

/// kubectl validates a `List` with version 2 of OpenAPI, which it requests as protobuf.
#[tokio::test]
async fn lists_in_a_file_are_validated_and_made() -> Result<()> {
    let session = begin().await?;
    let team = &session.team;
    let item = |name: &str, field: &str| {
        let meta = format!(r#"{{"name":"{name}"}}"#);
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{meta},"{field}":{{"a":"b"}}}}"#
        )
    };
    let list = |items: &[String]| {
        let items = items.join(",");
        format!(r#"{{"apiVersion":"v1","kind":"List","items":[{items}]}}"#)
    };
    let good = list(&[item("one", "data"), item("two", "data")]);
    contains(
        &team.ok_with(&["create", "-f", "-"], &good)?,
        &["configmap/one created", "configmap/two created"],
    )?;
    let file = session.folder.path().join("bad.json");
    fs::write(&file, list(&[item("three", "dta")]))?;
    let told = team.fails(&["create", "-f", &file.to_string_lossy()])?;
    contains(&told, &["unknown field \"dta\""])
}
