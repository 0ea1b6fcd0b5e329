//! Warnings about files of a volume that hide each other.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;

/// A file and what it comes from, if a warning names that.
#[derive(Debug, Clone, PartialEq)]
struct File {
    path: String,
    source: String,
}

impl File {
    fn new(path: &str, source: &str) -> Self {
        Self {
            path: path.trim_end_matches('/').to_owned(),
            source: source.to_owned(),
        }
    }

    fn text(&self) -> String {
        if self.source.is_empty() {
            quote(&self.path)
        } else {
            format!("{} ({})", quote(&self.path), self.source)
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (own, other) = (format!("{}/", self.path), format!("{}/", other.path));
        own.starts_with(&other) || other.starts_with(&own)
    }
}

/// Adds warnings about the volumes of a pod.
pub fn warnings(volumes: &[Value], out: &mut Vec<String>) {
    for volume in volumes {
        let name = volume.str_at(&["name"]);
        for (kind, shown, named_by) in [
            ("configMap", "ConfigMap", "name"),
            ("secret", "Secret", "secretName"),
            ("downwardAPI", "DownwardAPI", ""),
        ] {
            let source = &volume[kind];
            let what = if named_by.is_empty() {
                shown.to_owned()
            } else {
                format!("{shown} {}", quote(source.str_at(&[named_by])))
            };
            warn(name, &what, files(source, ""), out);
        }
        let sources = volume.items_at(&["projected", "sources"]);
        let mut all = Vec::new();
        let mut checked = 0;
        for source in sources {
            if source
                .as_object()
                .is_none_or(|members| members.values().all(Value::is_null))
            {
                // Upstream adds this warning here, among the overlaps.
                warn_from(name, "Projected", &all, checked, out);
                checked = all.len();
                out.push(format!(
                    "volume {} (Projected) has no sources provided",
                    quote(name)
                ));
                continue;
            }
            all.extend(projected(source));
        }
        warn_from(name, "Projected", &all, checked, out);
    }
}

fn warn(volume: &str, what: &str, files: Vec<File>, out: &mut Vec<String>) {
    warn_from(volume, what, &files, 0, out);
}

fn warn_from(volume: &str, what: &str, files: &[File], start: usize, out: &mut Vec<String>) {
    for (at, file) in files
        .iter()
        .enumerate()
        .skip(start)
        .filter(|(_, file)| !file.path.is_empty())
    {
        for other in files[..at]
            .iter()
            .filter(|other| !other.path.is_empty() && file.overlaps(other))
        {
            let (file, other) = (file.text(), other.text());
            out.push(format!(
                "volume {} ({what}): overlapping paths: {file} with {other}",
                quote(volume)
            ));
        }
    }
}

fn files(source: &Value, from: &str) -> Vec<File> {
    source
        .items_at(&["items"])
        .iter()
        .map(|item| File::new(item.str_at(&["path"]), from))
        .collect()
}

/// Returns the files of one source. If it has several kinds of source, the first one counts.
fn projected(source: &Value) -> Vec<File> {
    for (kind, shown) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        if !source[kind]["items"].is_null() {
            let from = format!("{shown} {}", quote(source.str_at(&[kind, "name"])));
            return files(&source[kind], &from);
        }
    }
    if !source["downwardAPI"]["items"].is_null() {
        return files(&source["downwardAPI"], "DownwardAPI");
    }
    let token = &source["serviceAccountToken"];
    if !token.is_null() {
        return vec![File::new(token.str_at(&["path"]), "ServiceAccountToken")];
    }
    let bundle = &source["clusterTrustBundle"];
    if !bundle.is_null() {
        let field = if bundle["name"].is_null() {
            "signerName"
        } else {
            "name"
        };
        let from = format!("ClusterTrustBundle {}", quote(bundle.str_at(&[field])));
        return vec![File::new(bundle.str_at(&["path"]), &from)];
    }
    let parts = [
        ("certificateChainPath", "PodCertificate chain"),
        ("keyPath", "PodCertificate key"),
        ("credentialBundlePath", "PodCertificate credential bundle"),
    ];
    let certificate = &source["podCertificate"];
    parts
        .iter()
        .filter(|(field, _)| !certificate.str_at(&[field]).is_empty())
        .map(|(field, from)| File::new(certificate.str_at(&[field]), from))
        .collect()
}
