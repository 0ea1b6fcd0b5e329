//! Since when the use of tokens is written down.

use super::Site;
use crate::token_secrets;
use polyplane_apimachinery::json;
use polyplane_plane::Key;

#[tokio::test]
async fn a_plane_says_since_its_first_secret_for_a_token_that_their_use_is_written_down() {
    let site = Site::open().await;
    let starts = |key: &Key| {
        let secret = site.object(key).expect("it is there");
        token_secrets::starts_tracking(&site.tenant, &secret, false)
    };
    let secret = |name: &str| Key::new("", "secrets", Some("default"), name);
    site.create(&secret("plain"), json!({})).await;
    assert!(!starts(&secret("plain")));
    let annotations = json!({"kubernetes.io/service-account.name": "default"});
    let body = json!({"type": "kubernetes.io/service-account-token", "metadata": {"annotations": annotations}});
    site.create(&secret("token"), body).await;
    assert!(starts(&secret("token")));
    let tracked = token_secrets::track(&site.client, &site.tenant).await;
    tracked.expect("it can be written");
    assert!(!starts(&secret("token")), "once is enough");
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    let map = site.tree(&Key::new("", "configmaps", Some("kube-system"), tracking));
    assert_eq!(map.str_at(&["data", "since"]).len(), "2006-01-02".len());
}
