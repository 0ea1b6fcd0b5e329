//! Which commands apply to the root plane, in which control planes are managed. It is no ControlPlane object
//! itself, so for most of them the server could only answer that there is none of that name.

use crate::cli::PluginAction;
use anyhow::bail;
use polyplane_ownership::ROOT;

/// Checks that a command applies to the root plane, if it names that.
///
/// # Errors
/// Returns why it does not, and what to do instead.
pub fn check(action: &PluginAction) -> anyhow::Result<()> {
    let (name, why) = match action {
        PluginAction::Create { name, .. } => (
            name,
            "it is always there, and no other control plane can have its name",
        ),
        PluginAction::Get { name, .. } => (
            name,
            "it has no ControlPlane object that could be shown. `kubectl plane locate root` shows who \
             owns it, `kubectl plane ring` the replicas",
        ),
        PluginAction::Kubeconfig(options) => (
            &options.name,
            "it has no CA of its own that could sign for its users. They have certificates of the server's \
             CA, or tokens that the server knows, such as those of the administrator's kubeconfig. To work \
             in it yourself: kubectl plane use root",
        ),
        PluginAction::Revoke(options) => (
            &options.name,
            "it has no list of revoked users. Take out the bindings of the user there, and its grants in \
             spec.access of the control planes",
        ),
        PluginAction::Rotate(options) if options.data_key => {
            (&options.name, "its data key cannot be replaced")
        }
        PluginAction::Rotate(options) => (
            &options.name,
            "it has no keys of its own that could be replaced. Its users have certificates of the server's \
             CA, or tokens that the server knows",
        ),
        PluginAction::Suspend { name } | PluginAction::Resume { name } => (
            name,
            "it cannot be suspended, because the others are managed there",
        ),
        PluginAction::Limits(options) => (
            &options.name,
            "it has none of these limits, because the others are managed there. A FlowSchema with a \
             PriorityLevelConfiguration there bounds the requests of its clients, a ResourceQuota the \
             objects of a namespace. `kubectl plane limits NAME` sets the limits of another control plane",
        ),
        PluginAction::Delete { name, .. } => (
            name,
            "it cannot be deleted. `kubectl plane list` shows the control planes that can be",
        ),
        PluginAction::List { .. }
        | PluginAction::Top(_)
        | PluginAction::Use { .. }
        | PluginAction::Ring { .. }
        | PluginAction::Terms { .. }
        | PluginAction::Locate { .. } => return Ok(()),
    };
    if name == ROOT {
        bail!("{ROOT:?} is the root plane, in which control planes are managed: {why}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::PluginCommand;
    use clap::Parser;

    fn checked(words: &str) -> Result<(), String> {
        let words = std::iter::once("kubectl-plane").chain(words.split(' '));
        let command = PluginCommand::try_parse_from(words).expect("a command");
        check(&command.action).map_err(|error| error.to_string())
    }

    #[test]
    fn what_does_not_apply_to_the_root_plane_says_so() {
        for (command, words) in [
            ("create NAME", "always there"),
            ("get NAME", "kubectl plane locate root"),
            ("kubeconfig NAME --admin", "kubectl plane use root"),
            ("kubeconfig NAME --user jane", "kubectl plane use root"),
            ("revoke NAME jane", "no list of revoked users"),
            ("rotate NAME --now", "no keys of its own"),
            ("rotate NAME --data-key", "its data key cannot be replaced"),
            ("suspend NAME", "cannot be suspended"),
            ("resume NAME", "cannot be suspended"),
            ("limits NAME", "`kubectl plane limits NAME`"),
            ("limits NAME", "PriorityLevelConfiguration"),
            ("delete NAME --yes", "cannot be deleted"),
        ] {
            let said = checked(&command.replace("NAME", "root")).expect_err(command);
            let begins = said.starts_with("\"root\" is the root plane");
            assert!(begins && said.contains(words), "{command}: {said}");
            assert_eq!(checked(&command.replace("NAME", "team-a")), Ok(()));
        }
        for command in ["list", "top", "use root", "locate root", "ring", "terms"] {
            assert_eq!(checked(command), Ok(()), "{command}");
        }
    }
}
