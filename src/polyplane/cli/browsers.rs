//! The flags of what browsers get, by the names of kube-apiserver's. This module does not know what they
//! mean.

use clap::Args;
use polyplane_server::BrowserOptions;

/// Options of what browsers get.
#[derive(Clone, Debug, Default, Args)]
pub struct BrowserFlags {
    /// Directives of the header Strict-Transport-Security on every answer: max-age=SECONDS,
    /// includeSubDomains, preload. Without it there is no such header. Several are separated by commas.
    #[arg(
        long,
        value_name = "DIRECTIVE",
        value_delimiter = ',',
        env = "POLYPLANE_STRICT_TRANSPORT_SECURITY_DIRECTIVES"
    )]
    pub strict_transport_security_directives: Vec<String>,
    /// Regular expressions of the origins whose pages may read answers (CORS), such as
    /// '//console\.example\.com(:|$)'. Each must be tied to both ends of the host, by ^ or // and by $ or :.
    /// Without it no page of another site may. Several are separated by commas.
    #[arg(
        long,
        value_name = "REGEX",
        value_delimiter = ',',
        env = "POLYPLANE_CORS_ALLOWED_ORIGINS"
    )]
    pub cors_allowed_origins: Vec<String>,
}

impl BrowserFlags {
    /// Returns the server's options.
    pub fn options(&self) -> BrowserOptions {
        // A flag or variable without text is a list without items, as upstream.
        let list = |given: &[String]| match given {
            [only] if only.is_empty() => Vec::new(),
            given => given.to_vec(),
        };
        BrowserOptions {
            hsts_directives: list(&self.strict_transport_security_directives),
            cors_allowed_origins: list(&self.cors_allowed_origins),
        }
    }
}
