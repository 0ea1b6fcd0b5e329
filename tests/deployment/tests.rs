//! Manifests as Helm prints them, and manifests that must be refused.

use super::*;

const MANIFEST: &str = r#"---
# Source: polyplane/templates/service.yaml
apiVersion: v1
kind: Service
metadata:
  name: polyplane
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: polyplane
spec:
  replicas: 3
  minReadySeconds: 5
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 0, maxSurge: 25%}
  selector:
    matchLabels: {app: polyplane}
  template:
    metadata:
      labels: {app: polyplane}
    spec:
      terminationGracePeriodSeconds: 60
      containers:
        - name: polyplane
          image: example.org/polyplane:1
          command: ["/polyplane"]
          args: ["serve", "--peer-listen=0.0.0.0:7443", "--certs=/certs", "$(UNKNOWN) $$(POD_IP) $"]
          env:
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
            - name: POLYPLANE_ADVERTISE
              value: "$(POD_IP):7443"
            - name: POLYPLANE_STORE_USER
              valueFrom: {secretKeyRef: {name: store, key: username}}
          ports:
            - {name: https, containerPort: 6443}
          startupProbe:
            httpGet: {scheme: HTTPS, path: /livez, port: https}
            periodSeconds: 1
            failureThreshold: 60
          readinessProbe:
            httpGet: {scheme: HTTPS, path: /readyz, port: 6443}
            periodSeconds: 2
            timeoutSeconds: 3
          lifecycle:
            preStop:
              exec: {command: ["/polyplane", "drain", "--certs", "/certs"]}
          volumeMounts:
            - {name: certs, mountPath: /certs, readOnly: true}
      volumes:
        - name: certs
          projected:
            sources:
              - secret: {name: serving, items: [{key: tls.crt, path: serving.crt}]}
              - secret: {name: token}
        - name: scratch
          emptyDir: {}
"#;

fn deployment() -> Deployment {
    Deployment::from_manifest(MANIFEST).expect("it is understood")
}

/// Returns the Deployment of the manifest after replacing `from` by `to`.
fn changed(from: &str, to: &str) -> Result<Deployment> {
    assert_eq!(MANIFEST.matches(from).count(), 1, "{from}");
    Deployment::from_manifest(&MANIFEST.replace(from, to))
}

#[test]
fn what_the_deployment_controller_needs_is_read() {
    let deployment = deployment();
    assert_eq!(deployment.name, "polyplane");
    assert_eq!(deployment.replicas, Some(3));
    assert_eq!(deployment.min_ready, Duration::from_secs(5));
    assert_eq!(deployment.termination_grace, Duration::from_secs(60));
    assert_eq!(deployment.strategy.unavailable_max, Amount::Pods(0));
    assert_eq!(deployment.strategy.surge_max, Amount::Percent(25));
    assert_eq!(deployment.labels["app"], "polyplane");
}

#[test]
fn an_autoscaled_deployment_names_no_replicas() {
    let autoscaled = changed("  replicas: 3\n", "").expect("it is understood");
    assert_eq!(autoscaled.replicas, None);
}

#[test]
fn shares_are_rounded_as_the_controller_rounds_them() {
    assert_eq!(Amount::Percent(25).of(3, true), 1);
    assert_eq!(Amount::Percent(25).of(3, false), 0);
    assert_eq!(Amount::Pods(2).of(1, false), 2);
}

#[test]
fn probes_have_the_defaults_of_kubernetes_and_ports_by_name() {
    let container = deployment().container;
    let startup = container.startup.as_ref().expect("there is one");
    assert_eq!(
        startup.check,
        Check::Http {
            https: true,
            path: "/livez".to_owned(),
            port: 6443,
        }
    );
    assert_eq!(startup.timeout, Duration::from_secs(1));
    assert_eq!(startup.successes, 1);
    assert_eq!(startup.notices_within(), Duration::from_secs(61));
    let readiness = container.readiness.as_ref().expect("there is one");
    assert_eq!(
        (readiness.failures, readiness.timeout),
        (3, Duration::from_secs(3))
    );
    assert!(container.liveness.is_none());
    let names: Vec<_> = container.probes().map(|(name, _)| name).collect();
    assert_eq!(names, ["startup", "readiness"]);
}

#[test]
fn a_launch_has_its_variables_put_in() {
    let launch = deployment().container.launch(|source| match source {
        Source::Field(path) if path == "status.podIP" => Ok("10.0.0.7".to_owned()),
        Source::Secret { name, key } => Ok(format!("{key} of {name}")),
        other => bail!("{other:?}"),
    });
    let launch = launch.expect("every source is known");
    assert_eq!(launch.program, "/polyplane");
    let expected = [
        "serve",
        "--peer-listen=0.0.0.0:7443",
        "--certs=/certs",
        "$(UNKNOWN) $(POD_IP) $",
    ];
    assert_eq!(launch.arguments, expected);
    let expected = [
        ("POD_IP", "10.0.0.7"),
        ("POLYPLANE_ADVERTISE", "10.0.0.7:7443"),
        ("POLYPLANE_STORE_USER", "username of store"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(launch.environment, expected);
    let moved = launch.relocated("/certs", "/tmp/x");
    assert_eq!(moved.arguments[2], "--certs=/tmp/x");
    let words = ["/polyplane", "drain", "--certs", "/tmp/x"].map(str::to_owned);
    assert_eq!(moved.pre_stop, Some(Hook::Exec(words.to_vec())));
}

#[test]
fn a_source_nobody_knows_is_named() {
    let failed = deployment().container.launch(|_| bail!("no such field"));
    let error = format!("{:#}", failed.expect_err("nothing is resolved"));
    assert_eq!(error, "POD_IP: no such field");
}

#[test]
fn volumes_and_their_files_are_read() {
    let deployment = deployment();
    let Volume::Secrets(secrets) = &deployment.volumes["certs"] else {
        panic!("{:?}", deployment.volumes);
    };
    assert_eq!(secrets[0].files["tls.crt"], "serving.crt");
    assert!(secrets[1].files.is_empty());
    assert_eq!(deployment.volumes["scratch"], Volume::Empty);
    let mount = &deployment.container.mounts[0];
    assert!(mount.read_only && mount.volume == "certs");
}

#[test]
fn what_is_not_understood_is_refused() {
    for (from, to) in [
        ("type: RollingUpdate\n", "type: Recreate\n"),
        ("kind: Deployment\n", "kind: StatefulSet\n"),
        ("kind: Service\n", "kind: Deployment\n"),
        ("port: https}", "port: http}"),
        (
            "httpGet: {scheme: HTTPS, path: /livez, port: https}",
            "grpc: {port: 6443}",
        ),
        ("maxSurge: 25%", "maxSurge: many"),
        ("minReadySeconds: 5", "minReadySeconds: -5"),
        (
            "exec: {command: [\"/polyplane\", \"drain\", \"--certs\", \"/certs\"]}",
            "tcpSocket: {}",
        ),
        ("secret: {name: token}", "configMap: {name: token}"),
        (
            "fieldRef: {fieldPath: status.podIP}",
            "resourceFieldRef: {}",
        ),
    ] {
        assert!(changed(from, to).is_err(), "{to}");
    }
}
