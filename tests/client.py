"""Uses the typed API of the official Python client. Run it with a kubeconfig; it prints `done`."""

import sys
import threading

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException


def main(kubeconfig):
    config.load_kube_config(kubeconfig)
    core, apps, rbac = client.CoreV1Api(), client.AppsV1Api(), client.RbacAuthorizationV1Api()
    namespace = "python"
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace)))

    version = core.list_namespaced_config_map(namespace).metadata.resource_version
    seen = []

    def follow():
        stream = watch.Watch()
        for event in stream.stream(core.list_namespaced_config_map, namespace, resource_version=version, timeout_seconds=60):
            seen.append((event["type"], event["object"].metadata.name, (event["object"].data or {}).get("k")))
            if event["type"] == "DELETED":
                stream.stop()

    follower = threading.Thread(target=follow)
    follower.start()

    made = core.create_namespaced_config_map(
        namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="cm", labels={"a": "b"}), data={"k": "1"})
    )
    made.data["k"] = "2"
    replaced = core.replace_namespaced_config_map("cm", namespace, made)
    assert int(replaced.metadata.resource_version) > int(made.metadata.resource_version)
    try:
        core.replace_namespaced_config_map("cm", namespace, made)
        raise AssertionError("an old version was accepted")
    except ApiException as error:
        assert error.status == 409, error
    core.patch_namespaced_config_map("cm", namespace, {"data": {"k": "3"}})
    assert core.read_namespaced_config_map("cm", namespace).data == {"k": "3"}

    labels = {"app": "web"}
    apps.create_namespaced_deployment(
        namespace,
        client.V1Deployment(
            metadata=client.V1ObjectMeta(name="web"),
            spec=client.V1DeploymentSpec(
                replicas=2,
                selector=client.V1LabelSelector(match_labels=labels),
                template=client.V1PodTemplateSpec(
                    metadata=client.V1ObjectMeta(labels=labels),
                    spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="nginx:1.27")]),
                ),
            ),
        ),
    )
    scale = apps.read_namespaced_deployment_scale("web", namespace)
    assert scale.spec.replicas == 2 and scale.status.selector == "app=web", scale
    scale.spec.replicas = 5
    apps.replace_namespaced_deployment_scale("web", namespace, scale)
    web = apps.read_namespaced_deployment("web", namespace)
    assert web.spec.replicas == 5 and web.metadata.generation == 2, web
    assert web.spec.strategy.rolling_update.max_surge == "25%", web
    service = core.create_namespaced_service(
        namespace,
        client.V1Service(
            metadata=client.V1ObjectMeta(name="web"),
            spec=client.V1ServiceSpec(selector=labels, ports=[client.V1ServicePort(port=80, target_port="http")]),
        ),
    )
    assert service.spec.cluster_ip.startswith("10."), service
    rbac.create_namespaced_role(
        namespace,
        client.V1Role(
            metadata=client.V1ObjectMeta(name="r"),
            rules=[client.V1PolicyRule(api_groups=[""], resources=["pods"], verbs=["get"])],
        ),
    )
    page, names = None, []
    while page is None or page.metadata._continue:
        token = page.metadata._continue if page else None
        page = rbac.list_cluster_role(limit=7, _continue=token)
        assert len(page.items) <= 7
        names += [item.metadata.name for item in page.items]
    assert names == sorted(set(names)) and len(names) > 50, len(names)
    try:
        core.read_namespaced_secret("nothing", namespace)
        raise AssertionError("there is no such secret")
    except ApiException as error:
        assert error.status == 404, error

    core.delete_namespaced_config_map("cm", namespace)
    follower.join(60)
    expected = [("ADDED", "cm", "1"), ("MODIFIED", "cm", "2"), ("MODIFIED", "cm", "3"), ("DELETED", "cm", "3")]
    assert seen == expected, seen
    core.delete_namespace(namespace)
    print("done")


main(sys.argv[1])
