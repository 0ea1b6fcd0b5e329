//! Two planes of one server never see each other, whatever a client writes into a path.

use anyhow::{Result, ensure};
use http::Method;
use polyplane_tests::client::{Client, Events, names, version};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{create_plane, delete_plane};
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";

/// A server with the planes `a` and `b`.
struct Pair {
    server: Up,
    root: Endpoint,
    a: Client,
    b: Client,
    /// Declared last, so that it is removed last.
    _folder: tempfile::TempDir,
}

async fn pair() -> Result<Pair> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let a = Client::open(&create_plane(&root, "a").await?).await?;
    let b = Client::open(&create_plane(&root, "b").await?).await?;
    Ok(Pair {
        server,
        root,
        a,
        b,
        _folder: folder,
    })
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"of": value}})
}

async fn watch_from_now(client: &Client) -> Result<Events> {
    let list = client.get(CONFIG_MAPS).await?.expect(200)?;
    client
        .watch(&format!(
            "{CONFIG_MAPS}?watch=1&resourceVersion={}",
            version(&list)
        ))
        .await
}

#[tokio::test]
async fn the_same_names_hold_different_objects() -> Result<()> {
    let pair = pair().await?;
    let mut of_b = watch_from_now(&pair.b).await?;
    let in_a = pair
        .a
        .post(CONFIG_MAPS, &config_map("same", "a"))
        .await?
        .expect(201)?;
    pair.b
        .get(&format!("{CONFIG_MAPS}/same"))
        .await?
        .refuses(404, "configmaps \"same\" not found")?;
    let in_b = pair
        .b
        .post(CONFIG_MAPS, &config_map("same", "b"))
        .await?
        .expect(201)?;
    ensure!(
        in_a["metadata"]["uid"] != in_b["metadata"]["uid"],
        "two objects, two uids"
    );
    pair.a
        .delete(&format!("{CONFIG_MAPS}/same"))
        .await?
        .expect(200)?;
    let kept = pair
        .b
        .get(&format!("{CONFIG_MAPS}/same"))
        .await?
        .expect(200)?;
    ensure!(kept["data"]["of"] == "b", "b keeps its own: {kept}");
    pair.b
        .post(CONFIG_MAPS, &config_map("last", "b"))
        .await?
        .expect(201)?;
    for name in ["same", "last"] {
        let (kind, object) = of_b.change().await?;
        ensure!(
            kind == "ADDED" && object["metadata"]["name"] == name,
            "b's watch shows {kind} {object}"
        );
        ensure!(
            object["data"]["of"] == "b",
            "b's watch shows what is b's: {object}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn namespaces_and_their_deletion_stay_inside() -> Result<()> {
    let pair = pair().await?;
    for (client, value) in [(&pair.a, "a"), (&pair.b, "b")] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shared"}});
        client
            .post("/api/v1/namespaces", &namespace)
            .await?
            .expect(201)?;
        client
            .post(
                "/api/v1/namespaces/shared/configmaps",
                &config_map("kept", value),
            )
            .await?
            .expect(201)?;
    }
    let path = "/api/v1/namespaces?watch=1&fieldSelector=metadata.name%3Dshared";
    let mut gone = pair.a.watch(path).await?;
    pair.a
        .delete("/api/v1/namespaces/shared")
        .await?
        .expect(200)?;
    while gone.change().await?.0 != "DELETED" {}
    pair.a
        .get("/api/v1/namespaces/shared/configmaps/kept")
        .await?
        .refuses(404, "not found")?;
    let kept = pair
        .b
        .get("/api/v1/namespaces/shared/configmaps/kept")
        .await?
        .expect(200)?;
    ensure!(kept["data"]["of"] == "b");
    let namespace = pair.b.get("/api/v1/namespaces/shared").await?.expect(200)?;
    ensure!(
        namespace["status"]["phase"] == "Active",
        "b's namespace is untouched: {namespace}"
    );
    // All objects of b can be deleted without an effect on a.
    pair.a
        .post(CONFIG_MAPS, &config_map("one", "a"))
        .await?
        .expect(201)?;
    pair.b
        .post(CONFIG_MAPS, &config_map("one", "b"))
        .await?
        .expect(201)?;
    pair.b.delete(CONFIG_MAPS).await?.expect(200)?;
    ensure!(
        pair.a.get(&format!("{CONFIG_MAPS}/one")).await?.status == 200,
        "a keeps its own"
    );
    Ok(())
}

#[tokio::test]
async fn tokens_and_versions_of_one_show_nothing_of_the_other() -> Result<()> {
    let pair = pair().await?;
    for index in 0..6 {
        pair.a
            .post(
                CONFIG_MAPS,
                &config_map(&format!("secret-of-a-{index}"), "a"),
            )
            .await?
            .expect(201)?;
    }
    pair.b
        .post(CONFIG_MAPS, &config_map("of-b", "b"))
        .await?
        .expect(201)?;
    let page = pair
        .a
        .get(&format!("{CONFIG_MAPS}?limit=2"))
        .await?
        .expect(200)?;
    let token = page["metadata"]["continue"].as_str().unwrap_or_default();
    ensure!(!token.is_empty(), "a's list goes on: {page}");
    // The token contains a place and a version of a, both meaningless in b: the answer is an error
    // or b's own objects.
    let other = pair
        .b
        .get(&format!("{CONFIG_MAPS}?limit=10&continue={token}"))
        .await?;
    ensure!(
        other.status == 200 || other.status == 400 || other.status == 410,
        "{:?}",
        other.status
    );
    ensure!(
        !other.body.to_string().contains("of-a"),
        "nothing of a: {}",
        other.body
    );
    let of_a = version(&pair.a.get(CONFIG_MAPS).await?.expect(200)?);
    for rule in ["NotOlderThan", "Exact"] {
        let path = format!("{CONFIG_MAPS}?resourceVersion={of_a}&resourceVersionMatch={rule}");
        let list = pair.b.get(&path).await?;
        ensure!(
            !list.body.to_string().contains("of-a"),
            "{rule}: nothing of a: {}",
            list.body
        );
        if list.status == 200 {
            ensure!(
                names(&list.body).iter().all(|name| !name.contains("of-a")),
                "{rule}"
            );
        }
    }
    // A watch of b from a version that only a has reached shows b's next change and nothing else.
    let made = pair
        .a
        .post(CONFIG_MAPS, &config_map("newest-of-a", "a"))
        .await?
        .expect(201)?;
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&made));
    let marker = pair
        .b
        .post(CONFIG_MAPS, &config_map("marker", "b"))
        .await?
        .expect(201)?;
    match pair.b.watch(&path).await {
        Ok(mut events) => {
            let (kind, object) = events.change().await?;
            let is_marker =
                kind == "ADDED" && object["metadata"]["uid"] == marker["metadata"]["uid"];
            ensure!(
                is_marker || kind == "ERROR",
                "b's watch shows {kind} {object}"
            );
        }
        Err(error) => ensure!(error.to_string().contains("410"), "{error:#}"),
    }
    // A version of a is not a precondition that an object of b can meet.
    let mut stolen = pair
        .b
        .get(&format!("{CONFIG_MAPS}/of-b"))
        .await?
        .expect(200)?;
    stolen["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    let put = pair
        .b
        .send(Method::PUT, &format!("{CONFIG_MAPS}/of-b"), &stolen)
        .await?;
    put.refuses(409, "the object has been modified")?;
    let precondition = json!({"preconditions": {"uid": made["metadata"]["uid"]}});
    let delete = pair
        .b
        .send(
            Method::DELETE,
            &format!("{CONFIG_MAPS}/of-b"),
            &precondition,
        )
        .await?;
    ensure!(delete.status == 409, "{:?}", delete);
    Ok(())
}

#[tokio::test]
async fn no_way_of_writing_a_path_leads_into_another_plane() -> Result<()> {
    let pair = pair().await?;
    pair.a
        .post(CONFIG_MAPS, &config_map("treasure", "only-in-a"))
        .await?
        .expect(201)?;
    pair.b
        .post(CONFIG_MAPS, &config_map("own", "only-in-b"))
        .await?
        .expect(201)?;
    let own = CONFIG_MAPS.trim_start_matches('/');
    let paths = [
        format!("/../a/{own}/treasure"),
        format!("/%2e%2e/a/{own}/treasure"),
        format!("/..%2fa/{own}/treasure"),
        format!("/..%2Fa%2F{own}/treasure"),
        format!("/%252e%252e/a/{own}/treasure"),
        format!("/%252e%252e%252fa/{own}/treasure"),
        format!("/./../a/{own}/treasure"),
        format!("//clusters/a/{own}/treasure"),
        format!("/clusters/a/{own}/treasure"),
        format!("/%2fclusters%2fa/{own}/treasure"),
        "/api/v1/namespaces/..%2f..%2f..%2fa%2fdefault/configmaps/treasure".to_owned(),
        format!(
            "{CONFIG_MAPS}/..%2f..%2f..%2f..%2f..%2fa%2f{}",
            own.replace('/', "%2f")
        ),
        format!("{CONFIG_MAPS}/../../../../../../a/{own}/treasure"),
        format!("{CONFIG_MAPS}/treasure%00"),
        format!("{CONFIG_MAPS}/treasure%2f"),
        format!("{CONFIG_MAPS}/%2e%2e"),
        format!("{CONFIG_MAPS}/own%2f..%2ftreasure"),
        "/api/v1/namespaces/a%2fdefault/configmaps/treasure".to_owned(),
        "/api/v1/namespaces//configmaps/treasure".to_owned(),
        "/api/v1/namespaces/default%2fconfigmaps%2ftreasure".to_owned(),
        "/api/v1/namespaces/default%00/configmaps/treasure".to_owned(),
        "/api/v1/namespaces/%ff%fe/configmaps/treasure".to_owned(),
    ];
    for path in &paths {
        let answer = pair.b.get(path).await?;
        ensure!(
            !answer.body.to_string().contains("only-in-a"),
            "GET {path} shows a: {}",
            answer.body
        );
        ensure!(
            answer.status.is_client_error(),
            "GET {path}: {} {}",
            answer.status,
            answer.body
        );
        let deleted = pair.b.delete(path).await?;
        ensure!(
            deleted.status.is_client_error(),
            "DELETE {path}: {} {}",
            deleted.status,
            deleted.body
        );
    }
    let kept = pair
        .a
        .get(&format!("{CONFIG_MAPS}/treasure"))
        .await?
        .expect(200)?;
    ensure!(kept["data"]["of"] == "only-in-a");
    // Names that no plane has: no plane answers, and the root does not either.
    let names = [
        "",
        ".",
        "..",
        "a%2fb",
        "a%00",
        "A",
        "%61%2e",
        "a ",
        "a%20",
        "nobody",
        "*",
        "%2e%2e%2fa",
    ];
    for name in names {
        let client = Client::open(&pair.root.at_base_path("")).await?;
        let path = format!("/clusters/{}{CONFIG_MAPS}", name.replace(' ', "%20"));
        let answer = client.get(&path).await?;
        ensure!(
            answer.status.is_client_error(),
            "GET {path}: {} {}",
            answer.status,
            answer.body
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_word_clusters_is_a_name_like_any_other() -> Result<()> {
    let pair = pair().await?;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "clusters"}});
    pair.a
        .post("/api/v1/namespaces", &namespace)
        .await?
        .expect(201)?;
    let maps = "/api/v1/namespaces/clusters/configmaps";
    for name in ["clusters", "a", "b", "root"] {
        pair.a
            .post(maps, &config_map(name, "a"))
            .await?
            .expect(201)?;
        let got = pair.a.get(&format!("{maps}/{name}")).await?.expect(200)?;
        ensure!(got["metadata"]["name"] == name);
    }
    let mut watch = pair.a.watch(&format!("{maps}?watch=1")).await?;
    for _ in 0..5 {
        let (kind, object) = watch.change().await?;
        ensure!(
            kind == "ADDED" && object["metadata"]["namespace"] == "clusters",
            "{object}"
        );
    }
    pair.a
        .delete("/api/v1/namespaces/clusters")
        .await?
        .expect(200)?;
    ensure!(
        pair.b.get("/api/v1/namespaces/clusters").await?.status == 404,
        "b never had it"
    );
    // No kind has such a name, and no path below a plane leads to another plane.
    for path in [
        "/apis/clusters/v1/clusters",
        "/api/v1/clusters",
        "/clusters",
        "/clusters/b",
        "/clusters/root/api",
    ] {
        ensure!(pair.a.get(path).await?.status == 404, "{path}");
    }
    // No plane can have a reserved or invalid name.
    let root = Client::open(&pair.root).await?;
    for name in ["root", "clusters", "a/b", "..", "A", "", "a.b", "p_1"] {
        let body = json!({"apiVersion": "polyplane.dev/v1alpha1", "kind": "ControlPlane", "metadata": {"name": name}});
        root.post(PLANES, &body).await?.refuses(422, "invalid")?;
    }
    Ok(())
}

#[tokio::test]
async fn a_plane_is_reached_by_name_and_by_id_but_not_by_mixtures() -> Result<()> {
    let pair = pair().await?;
    pair.a
        .post(CONFIG_MAPS, &config_map("here", "a"))
        .await?
        .expect(201)?;
    let root = Client::open(&pair.root).await?;
    let id_of = async |name: &str| -> Result<String> {
        let object = root.get(&format!("{PLANES}/{name}")).await?.expect(200)?;
        Ok(object["status"]["id"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    };
    let (a, b) = (id_of("a").await?, id_of("b").await?);
    ensure!(!a.is_empty() && a != b, "ids differ: {a} {b}");
    // A plane whose name is the id of another one is a plane of its own, because names and ids are
    // separate.
    let made = create_plane(&pair.root, &a).await;
    if let Ok(impostor) = made {
        let impostor = Client::open(&impostor).await?;
        ensure!(
            impostor.get(&format!("{CONFIG_MAPS}/here")).await?.status == 404,
            "the name leads to its own plane"
        );
        impostor
            .post(CONFIG_MAPS, &config_map("fake", "impostor"))
            .await?
            .expect(201)?;
    }
    ensure!(
        pair.a.get(&format!("{CONFIG_MAPS}/fake")).await?.status == 404,
        "a is untouched"
    );
    // A client cannot choose or change an id.
    let mut object = root.get(&format!("{PLANES}/b")).await?.expect(200)?;
    object["status"]["id"] = json!(a);
    let path = format!("{PLANES}/b/status");
    let _ = root.send(Method::PUT, &path, &object).await?;
    ensure!(id_of("b").await? == b, "the id of b stays");
    Ok(())
}

#[tokio::test]
async fn a_name_that_returns_brings_nothing_back() -> Result<()> {
    let pair = pair().await?;
    let root = Client::open(&pair.root).await?;
    let before = root.get(&format!("{PLANES}/a")).await?.expect(200)?;
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "old"}, "data": {"k": "dg=="}});
    pair.a.post(secrets, &secret).await?.expect(201)?;
    pair.a
        .post(CONFIG_MAPS, &config_map("old", "a"))
        .await?
        .expect(201)?;
    let system = pair
        .a
        .get("/api/v1/namespaces/kube-system")
        .await?
        .expect(200)?;
    let mut old_watch = watch_from_now(&pair.a).await?;
    let mut of_b = watch_from_now(&pair.b).await?;
    let list = pair.a.get(CONFIG_MAPS).await?.expect(200)?;
    let old_page = pair
        .a
        .get(&format!("{CONFIG_MAPS}?limit=1"))
        .await?
        .expect(200)?;
    let mut planes = root
        .watch(&format!(
            "{PLANES}?watch=1&resourceVersion={}",
            version(&before)
        ))
        .await?;
    delete_plane(&pair.root, "a").await?;
    while planes.change().await?.0 != "DELETED" {}
    old_watch.until_end().await?;
    pair.a
        .get(CONFIG_MAPS)
        .await?
        .refuses(404, "\"a\" not found")?;

    let again = Client::open(&create_plane(&pair.root, "a").await?).await?;
    let after = root.get(&format!("{PLANES}/a")).await?.expect(200)?;
    ensure!(
        before["status"]["id"] != after["status"]["id"],
        "a new plane, a new id"
    );
    ensure!(
        again.get(&format!("{secrets}/old")).await?.status == 404,
        "no old secret"
    );
    ensure!(
        names(&again.get(CONFIG_MAPS).await?.expect(200)?) == ["kube-root-ca.crt"],
        "only what is born"
    );
    let new_system = again
        .get("/api/v1/namespaces/kube-system")
        .await?
        .expect(200)?;
    ensure!(
        system["metadata"]["uid"] != new_system["metadata"]["uid"],
        "another cluster id"
    );
    ensure!(version(&new_system) > version(&system), "versions go on");
    // Old versions and tokens fail: the new plane of the same name does not answer them.
    let resumed = again
        .watch(&format!(
            "{CONFIG_MAPS}?watch=1&resourceVersion={}",
            version(&list)
        ))
        .await;
    match resumed {
        Ok(mut events) => {
            let (kind, object) = events.change().await?;
            ensure!(
                kind == "ERROR" && object["code"] == 410,
                "resumed over the gap: {kind} {object}"
            );
        }
        Err(error) => ensure!(error.to_string().contains("410"), "{error:#}"),
    }
    let token = old_page["metadata"]["continue"]
        .as_str()
        .unwrap_or_default();
    ensure!(!token.is_empty(), "a second page: {old_page}");
    let page = again
        .get(&format!("{CONFIG_MAPS}?limit=1&continue={token}"))
        .await?;
    page.refuses(410, "")?;
    // The other plane was not affected.
    pair.b
        .post(CONFIG_MAPS, &config_map("calm", "b"))
        .await?
        .expect(201)?;
    let (kind, object) = of_b.change().await?;
    ensure!(kind == "ADDED" && object["metadata"]["name"] == "calm");
    ensure!(
        !pair.server.log()?.contains("panicked"),
        "{}",
        pair.server.log()?
    );
    Ok(())
}
