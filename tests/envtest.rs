//! The test drop-in: the programs that test harnesses start, as they start them.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command as Finished, Output, Stdio};

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use polyplane_tests::client::Client;
use polyplane_tests::drop_in::{DropIn, START_LIMIT, assets, until_it_listens};
use polyplane_tests::process::memory_bytes;
use polyplane_tests::ring::addresses::free_ports;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use serde_json::{Value, json};
use tokio::process::Command;

fn finished(program: &Path, arguments: &[&str]) -> Result<Output> {
    Ok(Finished::new(program).args(arguments).output()?)
}

/// A CA with its key, and the certificates that it signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::from_ca_cert_pem(&pem, key)?;
        Ok(Self { issuer, pem })
    }

    /// Returns certificate and key of a client.
    fn client(&self, name: &str, groups: &[&str]) -> Result<(String, String)> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// The drop-in with all ways in that flags name.
struct Site {
    drop_in: DropIn,
    clients: Authority,
    proxies: Authority,
}

impl Site {
    /// Starts both programs. `etcd` is the etcd to use instead of the drop-in's.
    async fn start(etcd: Option<PathBuf>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (clients, proxies) = (Authority::new("clients")?, Authority::new("proxies")?);
        let write = |name: &str, text: &str| -> Result<String> {
            let path = folder.path().join(name);
            std::fs::write(&path, text)?;
            Ok(path.display().to_string())
        };
        let tokens = "a-token-of-a-file,jane,uid-1,\"sailors,cooks\"\n";
        let named = [
            ("client-ca-file", write("clients.crt", &clients.pem)?),
            (
                "requestheader-client-ca-file",
                write("proxies.crt", &proxies.pem)?,
            ),
            ("token-auth-file", write("tokens.csv", tokens)?),
        ];
        let mut flags: Vec<String> = named.map(|(flag, path)| format!("--{flag}={path}")).into();
        let others = [
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.77.0.0/24",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ];
        flags.extend(others.map(str::to_owned));
        let drop_in = DropIn::start(folder, flags, etcd).await?;
        Ok(Self {
            drop_in,
            clients,
            proxies,
        })
    }

    /// Returns a client with these members of a user in a kubeconfig.
    async fn client(&self, user: Value) -> Result<Client> {
        Client::open(&self.drop_in.endpoint(&user)?).await
    }

    async fn with_certificate(&self, (certificate, key): (String, String)) -> Result<Client> {
        let folder = self.drop_in.folder.path();
        std::fs::write(folder.join("user.crt"), certificate)?;
        std::fs::write(folder.join("user.key"), key)?;
        let user = json!({
            "client-certificate": folder.join("user.crt"),
            "client-key": folder.join("user.key"),
        });
        self.client(user).await
    }

    async fn admin(&self) -> Result<Client> {
        let admin = self.clients.client("admin", &["system:masters"])?;
        self.with_certificate(admin).await
    }
}

/// Returns the user that the server takes a caller for.
async fn who_am_i(client: &Client, headers: &[(&str, &str)]) -> Result<(StatusCode, Value)> {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let mut ask = polyplane_tests::programs::ask(Method::POST, path, &body);
    let headers = headers.iter();
    ask.headers
        .extend(headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let answer = client.raw(ask).await?;
    let body: Value = serde_json::from_slice(&answer.body)?;
    Ok((answer.status, body["status"]["userInfo"].clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_headers_that_flags_name_prove_users() -> Result<()> {
    let site = Site::start(None).await?;
    let admin = site.admin().await?;
    let all = "system:authenticated";

    let (status, user) = who_am_i(&admin, &[]).await?;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(user["username"], "admin");
    assert_eq!(user["groups"], json!(["system:masters", all]));

    let jane = site.client(json!({"token": "a-token-of-a-file"})).await?;
    let (_, user) = who_am_i(&jane, &[]).await?;
    assert_eq!(
        user,
        json!({"username": "jane", "uid": "uid-1", "groups": ["sailors", "cooks", all]})
    );
    assert_eq!(
        jane.get("/api/v1/pods").await?.status,
        StatusCode::FORBIDDEN
    );

    let wrong = site.client(json!({"token": "another"})).await?;
    assert_eq!(wrong.get("/api").await?.status, StatusCode::UNAUTHORIZED);

    let headers = [
        ("x-remote-user", "proxied"),
        ("x-remote-group", "one"),
        ("x-remote-group", "two"),
        ("x-remote-extra-scope", "deep"),
    ];
    let proxy = site.proxies.client("front-proxy", &[])?;
    let proxy = site.with_certificate(proxy).await?;
    let (_, user) = who_am_i(&proxy, &headers).await?;
    assert_eq!(user["username"], "proxied");
    assert_eq!(user["groups"], json!(["one", "two", all]));
    assert_eq!(user["extra"], json!({"scope": ["deep"]}));
    // Headers of others count for nothing: of a proxy by another name, of a user, of a stranger.
    let other = site.proxies.client("other-proxy", &[])?;
    let other = site.with_certificate(other).await?;
    assert_eq!(
        who_am_i(&other, &headers).await?.0,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(who_am_i(&jane, &headers).await?.1["username"], "jane");
    let stranger = site.client(json!({})).await?;
    let mut ask = polyplane_tests::programs::ask(Method::GET, "/api/v1/pods", &Value::Null);
    // Two spaces precede the token, so it does not count.
    ask.headers = vec![("authorization".into(), "Bearer  abc".into())];
    let pods = stranger.raw(ask).await?;
    assert_eq!(pods.status, StatusCode::FORBIDDEN);
    assert!(pods.headers.contains_key("warning"), "{:?}", pods.headers);
    let body: Value = serde_json::from_slice(&pods.body)?;
    let text = body["message"].as_str().unwrap_or_default();
    assert!(
        text.contains("User \"system:anonymous\" cannot list"),
        "{text}"
    );

    accounts_have_tokens(&site, &admin).await
}

async fn accounts_have_tokens(site: &Site, admin: &Client) -> Result<()> {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"metadata": {"name": "robot"}});
    assert_eq!(
        admin.post(accounts, &account).await?.status,
        StatusCode::CREATED
    );
    let token = admin
        .post(&format!("{accounts}/robot/token"), &json!({"spec": {}}))
        .await?;
    let token = token.body["status"]["token"]
        .as_str()
        .context("a token")?
        .to_owned();
    let robot = site.client(json!({"token": token})).await?;
    let (_, user) = who_am_i(&robot, &[]).await?;
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    let known = admin.get("/.well-known/openid-configuration").await?;
    assert_eq!(known.body["issuer"], "https://own.example.com/");
    assert_eq!(
        admin.get("/openid/v1/jwks").await?.body["keys"][0]["alg"],
        "ES256"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_looks_as_a_plain_kube_apiserver() -> Result<()> {
    let site = Site::start(None).await?;
    let admin = site.admin().await?;
    let groups = admin.get("/apis").await?.body.to_string();
    assert!(
        groups.contains("apiextensions.k8s.io") && !groups.contains("polyplane"),
        "{groups}"
    );
    let version = admin.get("/version").await?.body;
    assert_eq!(version["gitVersion"], "v1.37.0");
    let service = admin
        .get("/api/v1/namespaces/default/services/kubernetes")
        .await?;
    assert_eq!(service.body["spec"]["clusterIP"], "10.77.0.1");
    for (path, count) in [("/api/v1/serviceaccounts", 0), ("/api/v1/namespaces", 4)] {
        let list = admin.get(path).await?.body;
        assert_eq!(
            list["items"].as_array().map(Vec::len),
            Some(count),
            "{path}"
        );
    }
    for path in [
        "/clusters/root/api/v1/namespaces",
        "/polyplane/ring",
        "/drain",
    ] {
        assert_eq!(
            admin.get(path).await?.status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
    // Nobody makes anything in a new namespace, and nobody removes a deleted one.
    let made = admin
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "new"}}))
        .await?;
    assert_eq!(made.status, StatusCode::CREATED);
    let maps = admin.get("/api/v1/namespaces/new/configmaps").await?.body;
    assert_eq!(maps["items"], json!([]));
    let gone = admin.delete("/api/v1/namespaces/new").await?.body;
    assert_eq!(gone["status"]["phase"], "Terminating");
    let server = site.drop_in.server.id().context("it runs")?;
    println!(
        "envtest: API server ready in {} ms, resident {} KiB",
        site.drop_in.ready_in.as_millis(),
        memory_bytes(server)? / 1024,
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_seats_wait_where_there_are_priority_levels() -> Result<()> {
    let limits = [
        "--max-requests-inflight=1",
        "--max-mutating-requests-inflight=1",
    ];
    let (_drop_in, endpoint) = DropIn::start_for_admin(limits.map(str::to_owned).into()).await?;
    let admin = Client::open(&endpoint).await?;
    let asked = (0..50).map(|_| admin.get("/api/v1/namespaces"));
    for answer in futures_util::future::try_join_all(asked).await? {
        answer.expect(200)?;
    }
    Ok(())
}

/// `--runtime-config` takes group-versions and resources out of discovery, documents and paths. What is stored in
/// a version that is off is served in the others.
#[tokio::test(flavor = "multi_thread")]
async fn group_versions_that_are_off_are_nowhere() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let tokens = folder.path().join("tokens.csv");
    std::fs::write(&tokens, "the-token,admin,admin,system:masters\n")?;
    let choice = "apps/v1=false,autoscaling/v2=false,batch/v1/cronjobs=false,api/beta=true";
    let flags = vec![
        format!("--token-auth-file={}", tokens.display()),
        "--authorization-mode=RBAC".to_owned(),
        format!("--runtime-config={choice}"),
    ];
    let drop_in = DropIn::start(folder, flags, None).await?;
    let admin = Client::open(&drop_in.endpoint(&json!({"token": "the-token"}))?).await?;

    // As upstream: text where the group is not there, else a Status.
    for path in ["/apis/apps", "/apis/apps/v1", "/apis/apps/v1/deployments"] {
        let answer = admin.get(path).await?;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer.body, "404 page not found\n", "{path}");
    }
    for path in [
        "/apis/batch/v1/cronjobs",
        "/apis/autoscaling/v2/horizontalpodautoscalers",
    ] {
        let found = admin.get(path).await?;
        found.refuses(404, "the server could not find the requested resource")?;
    }
    let documents = ["/apis", "/openapi/v2", "/openapi/v3", "/apis/batch/v1"];
    for path in documents {
        let text = admin.get(path).await?.expect(200)?.to_string();
        // Descriptions of other kinds speak of them.
        for word in [
            "\"apps/v1\"",
            "apis/apps/v1",
            "\"autoscaling/v2\"",
            "apis/autoscaling/v2",
            "\"cronjobs\"",
            "/cronjobs",
        ] {
            assert!(!text.contains(word), "{path} has {word}");
        }
    }
    let group = admin.get("/apis/autoscaling").await?.expect(200)?;
    assert_eq!(group["preferredVersion"]["version"], "v1");
    admin.get("/apis/batch/v1/jobs").await?.expect(200)?;

    let scalers = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"});
    let scaler =
        json!({"metadata": {"name": "x"}, "spec": {"maxReplicas": 3, "scaleTargetRef": target}});
    admin.post(scalers, &scaler).await?.expect(201)?;
    let found = admin.get(&format!("{scalers}/x")).await?.expect(200)?;
    assert_eq!(found["spec"]["maxReplicas"], 3);
    Ok(())
}

/// The state survives the API server, however it ends, and nothing else.
async fn state_outlives_the_server(mut site: Site) -> Result<()> {
    let maps = "/api/v1/namespaces/default/configmaps";
    let made = site
        .admin()
        .await?
        .post(maps, &json!({"metadata": {"name": "stays"}}))
        .await?;
    assert_eq!(made.status, StatusCode::CREATED);
    let first_port = site.drop_in.port;
    let other_port = free_ports(Ipv4Addr::LOCALHOST, 1)?[0];
    for port in [first_port, other_port, first_port] {
        // Kill, so that nothing is handed over.
        site.drop_in.server.kill().await?;
        site.drop_in.start_again(port).await?;
        let admin = site.admin().await?;
        let found = admin.get(&format!("{maps}/stays")).await?;
        assert_eq!(found.body, made.body);
        let name = format!(
            "from-{port}-{}",
            site.drop_in.server.id().unwrap_or_default()
        );
        let next = admin
            .post(maps, &json!({"metadata": {"name": name}}))
            .await?;
        assert_eq!(next.status, StatusCode::CREATED);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_keeps_the_state_of_an_api_server_that_is_killed() -> Result<()> {
    let mut site = Site::start(None).await?;
    let data = site.drop_in.folder.path().join("etcd");
    assert!(!data.exists(), "nothing is written to {}", data.display());
    site.drop_in.etcd.start_kill()?;
    site.drop_in.etcd.wait().await?;
    site.drop_in.server.kill().await?;
    site.drop_in.start_etcd_again().await?;
    let port = site.drop_in.port;
    site.drop_in.start_again(port).await?;
    state_outlives_the_server(site).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_etcd_is_used_if_it_is_named() -> Result<()> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let found = finished(&programs, &["etcd"])?;
    let line = String::from_utf8(found.stdout)?;
    let etcd = line
        .trim()
        .strip_prefix("etcd ")
        .context("tests/programs finds no etcd")?;
    state_outlives_the_server(Site::start(Some(etcd.into())).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_both_within_a_second_with_watches_open() -> Result<()> {
    let mut site = Site::start(None).await?;
    let admin = site.admin().await?;
    let _events = admin.watch("/api/v1/configmaps?watch=1").await?;
    for child in [&mut site.drop_in.server, &mut site.drop_in.etcd] {
        let pid = child.id().context("it runs")?;
        finished(Path::new("kill"), &["-TERM", &pid.to_string()])?;
        let status = tokio::time::timeout(START_LIMIT, child.wait()).await??;
        assert!(status.success(), "{status}");
    }
    Ok(())
}

#[test]
fn command_lines_are_answered_as_by_the_real_programs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let assets = assets(folder.path())?;
    let server = assets.join("kube-apiserver");
    let etcd = assets.join("etcd");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for (program, arguments, wanted) in [
        (&server, &["--version"][..], "Kubernetes v1.37.0\n"),
        (&etcd, &["--version"], "etcd Version: 3."),
        (&server, &["--help"], "\n      --secure-port value"),
        (&etcd, &["--help"], "\n      --unsafe-no-fsync"),
    ] {
        let output = finished(program, arguments)?;
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        assert!(text(&output.stdout).contains(wanted), "{arguments:?}");
    }
    for (arguments, wanted) in [
        (
            &["--feature-gates=Nope=true"][..],
            "unrecognized feature gate: Nope",
        ),
        (
            &["--feature-gates=AllAlpha"],
            "missing bool value for AllAlpha",
        ),
        (
            &["--feature-gates=AllAlpha=x"],
            "invalid value of AllAlpha=x, err: strconv.ParseBool: parsing \"x\": invalid syntax",
        ),
        (
            &["--feature-gates=AggregatedDiscoveryRemoveBetaType=false"],
            "cannot set feature gate AggregatedDiscoveryRemoveBetaType to false, feature is locked to true",
        ),
        (
            &["--runtime-config=api/all=false"],
            "--runtime-config=api/all=false conflicts with --enable-priority-and-fairness=true, \
             invalid runtime-config with only api/all=false",
        ),
        (
            &["--runtime-config=nope"],
            "runtime-config invalid key nope",
        ),
        (&["--runtime-config=nope/v1"], "unknown api groups nope/v1"),
        (
            &["--runtime-config=apps/v9"],
            "group version apps/v9 that has not been registered",
        ),
        (
            &["--runtime-config=apps/v1=maybe"],
            "invalid value of apps/v1: maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
        ),
        (&["--runtime-config=api/ga"], "invalid value api/ga="),
        (
            &["--runtime-config=apps/v1/Deployments"],
            "resource is always lowercase plural, not \"Deployments\"",
        ),
        (
            &["--feature-gates=CompositePodGroup=true,GenericWorkload=true"],
            "CompositePodGroup is enabled, but depends on features that are disabled: [TopologyAwareWorkloadScheduling]",
        ),
        (&["--nope"], "Error: unknown flag: --nope\n"),
        (&[], "--etcd-servers must be specified"),
        (
            &[],
            "--service-account-signing-key-file and --service-account-issuer are required flags",
        ),
        (
            &["--enable-admission-plugins=Nope"],
            "enable-admission-plugins plugin \"Nope\" is unknown",
        ),
        (
            &["--authorization-mode=Nope"],
            "authorization-mode \"Nope\" is not a valid mode",
        ),
        (
            &["--oidc-issuer-url=https://x"],
            "oidc-issuer-url and oidc-client-id must be specified together",
        ),
        (
            &["--service-cluster-ip-range=nope"],
            "service-cluster-ip-range[0] is not a valid cidr",
        ),
        (
            &["--service-cluster-ip-range=10.0.0.0/30"],
            "error determining service IP ranges for primary service cidr: \
             the service cluster IP range must be at least 8 IP addresses",
        ),
        (
            &["--service-cluster-ip-range=10.0.0.0/16,nope"],
            "service-cluster-ip-range[1] is not an ip net",
        ),
        (
            &["--service-cluster-ip-range=10.0.0.0/16,10.1.0.0/16"],
            "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family",
        ),
        (
            &["--service-cluster-ip-range=10.0.0.0/16,2001:db8::/108,10.1.0.0/16"],
            "--service-cluster-ip-range must not contain more than two entries",
        ),
        (
            &["--service-cluster-ip-range=2001:db8::/108"],
            "service IP family \"2001:db8::/108\" must match public address family \"127.0.0.1\"",
        ),
        (
            &["--client-ca-file=/nowhere"],
            "--client-ca-file: open /nowhere",
        ),
        (
            &["--version=v9.9.9"],
            "must match major/minor/patch of default version \"v1.37.0\"",
        ),
    ] {
        let output = finished(&server, arguments)?;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
    let kubectl = Finished::new(assets.join("kubectl"))
        .env("PATH", &assets)
        .output()?;
    assert!(text(&kubectl.stderr).contains("there is no kubectl on PATH"));
    Ok(())
}

/// controller-runtime's envtest, as operators' projects use it.
#[test]
fn controller_runtimes_envtest_runs_on_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("envtest");
    let output = Finished::new("go")
        .args(["test", "-count=1", "-trimpath", "-v", "./..."])
        .current_dir(module)
        .env("KUBEBUILDER_ASSETS", assets(folder.path())?)
        .output()
        .context("Go is needed for controller-runtime's envtest")?;
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    assert_eq!(
        said.matches("--- PASS: Test").count(),
        4 + 4,
        "four tests, one of four parts"
    );
    Ok(())
}

/// Whoever can connect finds the certificate, though the server still waits for its etcd.
#[tokio::test]
async fn the_certificate_is_there_before_anybody_can_connect() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let key = folder.path().join("accounts.key");
    std::fs::write(&key, KeyPair::generate()?.serialize_pem())?;
    // It never answers.
    let etcd = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = free_ports(Ipv4Addr::LOCALHOST, 1)?[0];
    let _server = Command::new(assets(folder.path())?.join("kube-apiserver"))
        .arg(format!("--etcd-servers=http://{}", etcd.local_addr()?))
        .arg(format!("--secure-port={port}"))
        .args(["--bind-address=127.0.0.1", "--cert-dir"])
        .arg(folder.path().join("certs"))
        .arg("--service-account-issuer=https://issuer.example.com/")
        .arg("--service-account-key-file")
        .arg(&key)
        .arg("--service-account-signing-key-file")
        .arg(&key)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    until_it_listens(port).await?;
    let written = std::fs::read_to_string(folder.path().join("certs/apiserver.crt"))?;
    assert!(written.contains("BEGIN CERTIFICATE"), "{written}");
    Ok(())
}
