//! The commands that the chart runs, and the flags that the program has.

use std::process::Command;

use anyhow::{Result, bail, ensure};
use polyplane_tests::deployment::Hook;
use polyplane_tests::programs::polyplane;

use super::each;

/// Returns the help text of a subcommand.
fn help(subcommand: &str) -> Result<String> {
    let output = Command::new(polyplane()?)
        .args([subcommand, "--help"])
        .env_clear()
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn the_program_knows_every_flag_and_variable() -> Result<()> {
    let (serve, drain) = (help("serve")?, help("drain")?);
    let knows = |help: &str, word: &str| {
        let flag = word.split('=').next().unwrap_or_default();
        let mut words =
            help.split(|letter: char| !(letter.is_alphanumeric() || "-_".contains(letter)));
        words.any(|known| known == flag)
    };
    each(|rendered| {
        let container = &rendered.deployment.container;
        for argument in &container.args[1..] {
            ensure!(knows(&serve, argument), "serve knows no {argument}");
            // Numbers of a file of values are floats to helm.
            ensure!(!argument.contains("e+0"), "{argument} is no whole number");
        }
        for variable in &container.env {
            let own = variable.name.starts_with("POLYPLANE_");
            ensure!(
                !own || knows(&serve, &variable.name),
                "serve knows no {}",
                variable.name
            );
        }
        let Some(Hook::Exec(words)) = &container.pre_stop else {
            bail!("no command before SIGTERM");
        };
        for word in &words[2..] {
            ensure!(knows(&drain, word), "drain knows no {word}");
        }
        Ok(())
    })
}
