//! Unmodified clients of other projects against a plane: kube-rs and the Python client.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{Discovery, Scope};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector, watcher as watch};
use kube::{Client, Config, ResourceExt};
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use polyplane_tests::python::python;
use serde_json::json;
use tokio::time::timeout;

/// The longest time that a test waits for an event that must arrive.
const EVENT_LIMIT: Duration = Duration::from_secs(30);

async fn client(server: &Up, context: &str) -> Result<Client> {
    let options = KubeConfigOptions {
        context: Some(context.to_owned()),
        ..KubeConfigOptions::default()
    };
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(&server.kubeconfig)?, &options)
            .await?;
    Ok(Client::try_from(config)?)
}

/// Starts a server with the plane `a`, for which the kubeconfig has a context.
async fn begin(folder: &Path) -> Result<(Up, Client)> {
    // The client library uses the TLS provider of the process.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let server = Up::start(&folder.join("data"), &[]).await?;
    create_plane(&server.root()?, "a").await?;
    loop {
        if let Ok(client) = client(&server, "a").await {
            return Ok((server, client));
        }
        tokio::task::yield_now().await;
    }
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("v".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

async fn next<T, E: Into<anyhow::Error>>(
    stream: &mut (impl Stream<Item = Result<T, E>> + Unpin),
) -> Result<T> {
    let item = timeout(EVENT_LIMIT, stream.next())
        .await
        .context("nothing came")?;
    item.context("the stream ended")?.map_err(Into::into)
}

#[tokio::test]
async fn kube_rs_reads_and_writes_typed_objects() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (_server, client) = begin(folder.path()).await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let made = maps
        .create(&PostParams::default(), &config_map("typed", "1"))
        .await?;
    let mut changed = made.clone();
    changed
        .data
        .get_or_insert_default()
        .insert("v".into(), "2".into());
    let replaced = maps
        .replace("typed", &PostParams::default(), &changed)
        .await?;
    ensure!(replaced.resource_version() != made.resource_version() && replaced.uid() == made.uid());
    let conflict = maps
        .replace("typed", &PostParams::default(), &changed)
        .await;
    ensure!(
        matches!(&conflict, Err(kube::Error::Api(status)) if status.code == 409),
        "{conflict:?}"
    );
    let twice = maps
        .create(&PostParams::default(), &config_map("typed", "1"))
        .await;
    ensure!(
        matches!(&twice, Err(kube::Error::Api(status)) if status.reason == "AlreadyExists"),
        "{twice:?}"
    );
    // All three kinds of patch.
    let parameters = PatchParams::default();
    maps.patch(
        "typed",
        &parameters,
        &Patch::Merge(json!({"data": {"m": "merge", "v": null}})),
    )
    .await?;
    maps.patch(
        "typed",
        &parameters,
        &Patch::Strategic(json!({"metadata": {"labels": {"s": "strategic"}}})),
    )
    .await?;
    let steps = serde_json::from_value(json!([{"op": "add", "path": "/data/j", "value": "json"}]))?;
    let patched = maps
        .patch("typed", &parameters, &Patch::Json::<()>(steps))
        .await?;
    ensure!(
        patched
            .labels()
            .get("s")
            .is_some_and(|value| value == "strategic")
    );
    let data = patched.data.clone().unwrap_or_default();
    ensure!(
        data == BTreeMap::from([("m".into(), "merge".into()), ("j".into(), "json".into())]),
        "{data:?}"
    );
    ensure!(maps.get_opt("nothing").await?.is_none());
    // A list in pages must equal a list in one piece.
    for index in 0..25 {
        maps.create(
            &PostParams::default(),
            &config_map(&format!("page-{index:02}"), "x"),
        )
        .await?;
    }
    let whole = maps.list(&ListParams::default()).await?;
    let mut paged = Vec::new();
    let mut parameters = ListParams::default().limit(4);
    loop {
        let page = maps.list(&parameters).await?;
        ensure!(page.items.len() <= 4);
        paged.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => break,
        }
    }
    ensure!(
        paged == whole.items && paged.len() == 27,
        "{} of {}",
        paged.len(),
        whole.items.len()
    );
    let metadata = maps
        .list_metadata(&ListParams::default().labels("s=strategic"))
        .await?;
    ensure!(metadata.items.len() == 1 && metadata.items[0].name_any() == "typed");
    maps.delete("typed", &DeleteParams::background()).await?;
    maps.delete_collection(
        &DeleteParams::default(),
        &ListParams::default().fields("metadata.name!=page-00"),
    )
    .await?;
    let left: Vec<String> = maps
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    ensure!(
        left.contains(&"page-00".to_owned()) && !left.contains(&"page-01".to_owned()),
        "{left:?}"
    );
    // Create a namespace, a service, which gets an address, and a deployment, which has a scale.
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "rust"}}))?;
    namespaces
        .create(&PostParams::default(), &namespace)
        .await?;
    let services: Api<Service> = Api::namespaced(client.clone(), "rust");
    let service = serde_json::from_value(
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
    )?;
    let service = services.create(&PostParams::default(), &service).await?;
    ensure!(
        service
            .spec
            .and_then(|spec| spec.cluster_ip)
            .is_some_and(|address| address.starts_with("10."))
    );
    let deployments: Api<Deployment> = Api::namespaced(client, "rust");
    let deployment = serde_json::from_value(
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
    )?;
    deployments
        .create(&PostParams::default(), &deployment)
        .await?;
    let scale = json!({"spec": {"replicas": 3}});
    let scale = deployments
        .patch_scale("d", &PatchParams::default(), &Patch::Merge(scale))
        .await?;
    ensure!(scale.spec.and_then(|spec| spec.replicas) == Some(3));
    let status = json!({"status": {"readyReplicas": 3, "replicas": 3}});
    let seen = deployments
        .patch_status("d", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    ensure!(
        seen.status.and_then(|status| status.ready_replicas) == Some(3)
            && seen.metadata.generation == Some(2)
    );
    Ok(())
}

#[tokio::test]
async fn kube_rs_works_with_kinds_it_discovers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, client) = begin(folder.path()).await?;
    let found = Discovery::new(client.clone()).run_aggregated().await?;
    let slow = Discovery::new(client.clone()).run().await?;
    let count = |discovery: &Discovery| {
        discovery
            .groups()
            .map(|group| group.recommended_resources().len())
            .sum::<usize>()
    };
    ensure!(
        count(&found) == count(&slow) && count(&found) > 40,
        "{} and {} kinds",
        count(&found),
        count(&slow)
    );
    let kind = GroupVersionKind::gvk("networking.k8s.io", "v1", "Ingress");
    let (resource, capabilities) = found.resolve_gvk(&kind).context("no ingresses")?;
    ensure!(capabilities.scope == Scope::Namespaced && resource.plural == "ingresses");
    let ingresses: Api<DynamicObject> = Api::default_namespaced_with(client, &resource);
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let ingress =
        DynamicObject::new("dynamic", &resource).data(json!({"spec": {"defaultBackend": backend}}));
    let made = ingresses.create(&PostParams::default(), &ingress).await?;
    ensure!(made.data["spec"]["defaultBackend"] == backend);
    ingresses
        .delete("dynamic", &DeleteParams::default())
        .await?;
    ensure!(ingresses.get_opt("dynamic").await?.is_none());
    // Planes are objects of the root plane.
    let root = self::client(&server, "root").await?;
    let planes = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "polyplane.dev",
        "v1alpha1",
        "ControlPlane",
    ));
    let planes: Api<DynamicObject> = Api::all_with(root, &planes);
    let plane = planes.get("a").await?;
    ensure!(
        plane.data["status"]["url"]
            .as_str()
            .is_some_and(|url| url.ends_with("/clusters/a")),
        "{plane:?}"
    );
    Ok(())
}

#[tokio::test]
async fn kube_rs_watchers_and_reflectors_follow() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (_server, client) = begin(folder.path()).await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for index in 0..20 {
        maps.create(
            &PostParams::default(),
            &config_map(&format!("old-{index:02}"), "0"),
        )
        .await?;
    }
    // A watcher may list in pages or stream the list; both must begin in the same way.
    for config in [
        watcher::Config::default().page_size(3),
        watcher::Config::default().streaming_lists(),
    ] {
        let mut events = pin!(watch(maps.clone(), config));
        ensure!(matches!(next(&mut events).await?, Event::Init));
        let mut first = Vec::new();
        loop {
            match next(&mut events).await? {
                Event::InitApply(object) => first.push(object.name_any()),
                Event::InitDone => break,
                other => bail!("unexpected at the beginning: {other:?}"),
            }
        }
        ensure!(first.len() == 21, "{first:?}");
        maps.create(&PostParams::default(), &config_map("live", "1"))
            .await?;
        maps.patch(
            "live",
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"v": "2"}})),
        )
        .await?;
        maps.delete("live", &DeleteParams::default()).await?;
        for expected in ["1", "2"] {
            let Event::Apply(object) = next(&mut events).await? else {
                bail!("no change")
            };
            ensure!(
                object.name_any() == "live" && object.data.unwrap_or_default()["v"] == expected
            );
        }
        let Event::Delete(object) = next(&mut events).await? else {
            bail!("no end")
        };
        ensure!(object.name_any() == "live");
    }
    // The store of a reflector must equal a list.
    let (reader, writer) = reflector::store();
    let stream = reflector(writer, watch(maps.clone(), watcher::Config::default()))
        .default_backoff()
        .touched_objects();
    let mut stream = pin!(stream);
    for index in 0..20 {
        let name = format!("old-{index:02}");
        match index % 2 {
            0 => drop(maps.delete(&name, &DeleteParams::default()).await?),
            _ => drop(
                maps.patch(
                    &name,
                    &PatchParams::default(),
                    &Patch::Merge(json!({"data": {"v": "new"}})),
                )
                .await?,
            ),
        }
    }
    maps.create(&PostParams::default(), &config_map("zz-last", "x"))
        .await?;
    for name in ["zz-last", "zzz-live"] {
        while next(&mut stream).await?.name_any() != name {}
        if name == "zz-last" {
            // Once an event after the list was seen, the whole list is in the store.
            maps.create(&PostParams::default(), &config_map("zzz-live", "x"))
                .await?;
        }
    }
    let mut kept: Vec<ConfigMap> = reader
        .state()
        .iter()
        .map(|object| (**object).clone())
        .collect();
    kept.sort_by_key(ResourceExt::name_any);
    let list = maps.list(&ListParams::default()).await?.items;
    ensure!(
        kept == list,
        "the reflector holds {} objects, there are {}",
        kept.len(),
        list.len()
    );
    Ok(())
}

#[tokio::test]
async fn the_python_client_works() -> Result<()> {
    let Some(python) = python()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let (server, _client) = begin(folder.path()).await?;
    let config = folder.path().join("a.kubeconfig");
    let text = std::fs::read_to_string(&server.kubeconfig)?;
    std::fs::write(
        &config,
        text.replace("current-context: root", "current-context: a"),
    )?;
    let program = polyplane_tests::golden::folder().join("client.py");
    let output = tokio::process::Command::new(python)
        .arg(program)
        .arg(&config)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && said.trim() == "done",
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
