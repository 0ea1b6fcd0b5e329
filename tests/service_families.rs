//! Ranges of service addresses of both families, in the test drop-in: what its objects show, which addresses
//! Services get, and what a start with other ranges changes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::drop_in::DropIn;
use serde_json::{Value, json};

const RANGE: &str = "--service-cluster-ip-range=";
const KUBERNETES: &str = "/api/v1/namespaces/default/services/kubernetes";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const NETWORK: &str = "/apis/networking.k8s.io/v1";
/// The longest time until an object is changed or made again, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a plane serves before it takes what another start brings.
const SETTLED: Duration = Duration::from_millis(1500);

async fn start(flags: &[&str]) -> Result<(DropIn, Client)> {
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let (drop_in, endpoint) = DropIn::start_for_admin(flags).await?;
    let admin = Client::open(&endpoint).await?;
    Ok((drop_in, admin))
}

/// Starts the server again, with these ranges.
async fn start_with(drop_in: &mut DropIn, ranges: &str) -> Result<Client> {
    drop_in.server.kill().await?;
    drop_in.add_flag(&format!("{RANGE}{ranges}"));
    drop_in.start_again(drop_in.port).await?;
    Client::open(&drop_in.endpoint(&json!({"token": "the-token"}))?).await
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    client.get(path).await?.expect(200)
}

async fn create(client: &Client, name: &str, policy: &str) -> Result<Value> {
    let service = json!({
        "metadata": {"name": name},
        "spec": {"ipFamilyPolicy": policy, "ports": [{"port": 80}]},
    });
    client.post(SERVICES, &service).await?.expect(201)
}

/// Waits until an object has a value at a JSON pointer.
async fn until(client: &Client, path: &str, pointer: &str, wanted: &Value) -> Result<()> {
    let began = Instant::now();
    loop {
        let found = client.get(path).await?;
        if found.body.pointer(pointer) == Some(wanted) {
            return Ok(());
        }
        ensure!(began.elapsed() < LIMIT, "{path}: {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn families(service: &Value) -> Value {
    let texts = service["spec"]["clusterIPs"]
        .as_array()
        .into_iter()
        .flatten();
    let is_six = |text: &Value| text.as_str().is_some_and(|text| text.contains(':'));
    texts
        .map(|text| if is_six(text) { "IPv6" } else { "IPv4" })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_range_is_that_of_the_server_and_both_give_addresses() -> Result<()> {
    let ranges = format!("{RANGE}2001:db8:1::/108,10.77.0.0/24");
    let (_drop_in, admin) = start(&[&ranges, "--advertise-address=2001:db8::10"]).await?;
    let spec = &get(&admin, KUBERNETES).await?["spec"];
    assert_eq!(spec["clusterIPs"], json!(["2001:db8:1::1"]));
    assert_eq!(spec["ipFamilies"], json!(["IPv6"]));
    assert_eq!(spec["ipFamilyPolicy"], "SingleStack");
    let cidr = get(&admin, &format!("{NETWORK}/servicecidrs/kubernetes")).await?;
    assert_eq!(
        cidr["spec"]["cidrs"],
        json!(["2001:db8:1::/108", "10.77.0.0/24"])
    );
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = get(&admin, path).await?;
    assert_eq!(slice["addressType"], "IPv6");
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["2001:db8::10"]));
    let label = "ipaddress.kubernetes.io~1ip-family";
    let family = async |address: &str| -> Result<Value> {
        let record = get(&admin, &format!("{NETWORK}/ipaddresses/{address}")).await?;
        let label = record.pointer(&format!("/metadata/labels/{label}"));
        Ok(label.cloned().unwrap_or_default())
    };
    assert_eq!(family("2001:db8:1::1").await?, "IPv6");

    let single = create(&admin, "single", "SingleStack").await?;
    assert_eq!(families(&single), json!(["IPv6"]));
    let dual = create(&admin, "dual", "RequireDualStack").await?;
    assert_eq!(families(&dual), json!(["IPv6", "IPv4"]));
    for (at, wanted) in ["IPv6", "IPv4"].iter().enumerate() {
        let address = dual["spec"]["clusterIPs"][at].as_str().unwrap_or_default();
        assert_eq!(family(address).await?, *wanted);
    }

    // The second address goes with the policy, and its record with it.
    let second = dual["spec"]["clusterIPs"][1].as_str().unwrap_or_default();
    let (path, kind) = (format!("{SERVICES}/dual"), "application/merge-patch+json");
    let patch = r#"{"spec": {"ipFamilyPolicy": "SingleStack"}}"#;
    let less = admin.typed(Method::PATCH, &path, kind, patch).await?;
    assert_eq!(families(&less.expect(200)?), json!(["IPv6"]));
    let record = admin
        .get(&format!("{NETWORK}/ipaddresses/{second}"))
        .await?;
    assert_eq!(record.status, 404);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_other_ranges_changes_no_address_that_is_there() -> Result<()> {
    let (mut drop_in, admin) = start(&[&format!("{RANGE}10.77.0.0/24")]).await?;
    let cidr = format!("{NETWORK}/servicecidrs/kubernetes");
    let prefers = create(&admin, "old", "PreferDualStack").await?;
    assert_eq!(families(&prefers), json!(["IPv4"]));
    let service = get(&admin, KUBERNETES).await?;

    // The secondary range comes to the object, as the only change.
    let admin = start_with(&mut drop_in, "10.77.0.0/24,2001:db8:1::/108").await?;
    let both = json!(["10.77.0.0/24", "2001:db8:1::/108"]);
    let new = create(&admin, "new", "PreferDualStack").await?;
    assert_eq!(families(&new), json!(["IPv4", "IPv6"]));
    let cidrs = "/spec/cidrs";
    until(&admin, &cidr, cidrs, &both).await?;
    assert_eq!(get(&admin, KUBERNETES).await?, service);
    let old = get(&admin, &format!("{SERVICES}/old")).await?;
    assert_eq!(families(&old), json!(["IPv4"]));

    // Other ranges wait until somebody deletes the objects.
    let admin = start_with(&mut drop_in, "10.99.0.0/24").await?;
    let made = create(&admin, "newer", "PreferDualStack").await?;
    let address = made["spec"]["clusterIP"].as_str().unwrap_or_default();
    ensure!(address.starts_with("10.77.0."), "{made}");
    tokio::time::sleep(SETTLED).await;
    assert_eq!(get(&admin, &cidr).await?.pointer(cidrs), Some(&both));
    assert_eq!(get(&admin, KUBERNETES).await?, service);
    for path in [cidr.as_str(), KUBERNETES] {
        admin.delete(path).await?.expect(200)?;
    }
    until(&admin, KUBERNETES, "/spec/clusterIP", &json!("10.99.0.1")).await?;
    until(&admin, &cidr, cidrs, &json!(["10.99.0.0/24"])).await?;
    let record = admin
        .get(&format!("{NETWORK}/ipaddresses/10.77.0.1"))
        .await?;
    assert_eq!(record.status, 404);
    Ok(())
}
