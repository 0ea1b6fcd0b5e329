//! Since when the use of tokens is written down.

use super::Site;
use crate::token_secrets::{self, DeletedSecret};
use polyplane_apimachinery::json;
use polyplane_plane::Key;

fn tracking() -> Key {
    let name = "kube-apiserver-legacy-service-account-token-tracking";
    Key::new("", "configmaps", Some("kube-system"), name)
}

/// Creates a Secret for a token of the default account.
async fn create_token_secret(site: &Site, key: &Key) {
    let annotations = json!({"kubernetes.io/service-account.name": "default"});
    let body = json!({"type": "kubernetes.io/service-account-token", "metadata": {"annotations": annotations}});
    site.create(key, body).await;
}

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
    create_token_secret(&site, &secret("token")).await;
    assert!(starts(&secret("token")));
    let tracked = token_secrets::track(&site.client, &site.tenant).await;
    tracked.expect("it can be written");
    assert!(!starts(&secret("token")), "once is enough");
    let map = site.tree(&tracking());
    assert_eq!(map.str_at(&["data", "since"]).len(), "2006-01-02".len());
}

#[tokio::test]
async fn what_says_since_when_use_is_written_down_comes_back_and_a_new_owner_sees_that_it_is_gone()
{
    let site = Site::open().await;
    assert!(
        !token_secrets::pending(&site.tenant).await.lacks_tracking,
        "there is no Secret"
    );
    create_token_secret(&site, &Key::new("", "secrets", Some("default"), "token")).await;
    assert!(token_secrets::pending(&site.tenant).await.lacks_tracking);
    let other = Key::new("", "configmaps", Some("default"), tracking().name());
    site.create(&other, json!({})).await;
    let other_map = site.object(&other).expect("it is there");
    site.delete(&other).await;
    assert!(!token_secrets::starts_tracking(
        &site.tenant,
        &other_map,
        true
    ));
    for _ in 0..2 {
        let tracked = token_secrets::track(&site.client, &site.tenant).await;
        tracked.expect("it can be written");
        assert!(!token_secrets::pending(&site.tenant).await.lacks_tracking);
        let map = site.object(&tracking()).expect("it is there");
        assert!(!token_secrets::starts_tracking(&site.tenant, &map, false));
        site.delete(&tracking()).await;
        assert!(token_secrets::starts_tracking(&site.tenant, &map, true));
        assert!(token_secrets::pending(&site.tenant).await.lacks_tracking);
    }
}

#[tokio::test]
async fn a_deleted_secret_leaves_the_list_of_its_own_account_alone() {
    let site = Site::open().await;
    let account = |name: &str| Key::new("", "serviceaccounts", Some("default"), name);
    for name in ["a", "b"] {
        let secrets = vec![json!({"name": "s"}), json!({"name": "other"})];
        site.create(&account(name), json!({"secrets": secrets}))
            .await;
    }
    let key = Key::new("", "secrets", Some("default"), "s");
    let uid = site
        .tree(&account("a"))
        .str_at(&["metadata", "uid"])
        .to_owned();
    for (uid, left) in [("of-an-earlier-account", 2), (uid.as_str(), 1)] {
        let annotations = json!({"kubernetes.io/service-account.name": "a", "kubernetes.io/service-account.uid": uid});
        let body = json!({"type": "kubernetes.io/service-account-token", "metadata": {"annotations": annotations}});
        site.create(&key, body).await;
        let secret = site.object(&key).expect("it is there");
        assert_eq!(DeletedSecret::of(&secret, false), None);
        site.delete(&key).await;
        let deleted = DeletedSecret::of(&secret, true).expect("it held a token");
        let done = token_secrets::unlist(&site.client, &site.tenant, &deleted).await;
        assert!(done.is_ok());
        let listed = |name: &str| site.tree(&account(name)).items_at(&["secrets"]).len();
        assert_eq!((listed("a"), listed("b")), (left, 2));
    }
}
