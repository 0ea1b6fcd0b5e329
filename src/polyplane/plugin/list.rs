//! `kubectl plane list`: the control planes, a page at a time.

use super::client::{Client, Refusal};
use super::output::PlaneList;
use super::print::{Table, bytes, progress};
use super::{PLANES, escape, row};
use crate::cli::output::OutputFormat;
use anyhow::{Context, bail};
use polyplane_apimachinery::Value;

/// Control planes per request, as many as kubectl requests. All of them in one answer can be longer
/// than the plugin accepts.
const PAGE: usize = 500;

/// Prints all control planes.
pub async fn list(client: &Client, format: Option<OutputFormat>) -> anyhow::Result<()> {
    let fetch = async |path: String| client.send("GET", &path, None).await;
    if let Some(format) = format {
        let mut list = PlaneList::new(format);
        pages(fetch, |planes| Ok(bytes(&list.page(planes))?)).await?;
        return Ok(bytes(&list.end())?);
    }
    let mut table = Table::new(["NAME", "READY", "OBJECTS", "AGE", "ID"]);
    let found = pages(fetch, |planes| {
        let rows: Vec<[String; 5]> = planes.iter().map(row).collect();
        Ok(table.print(&rows)?)
    });
    if found.await? == 0 {
        progress("there are no control planes; create one with `kubectl plane create NAME`\n");
    }
    Ok(())
}

/// Fetches page after page and passes the items of each to `show`. Returns the number of items.
async fn pages(
    fetch: impl AsyncFn(String) -> Result<Value, Refusal>,
    mut show: impl FnMut(&[Value]) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let first = format!("{PLANES}?limit={PAGE}");
    let (mut path, mut shown, mut token) = (first.clone(), 0, String::new());
    loop {
        let page = fetch(path).await;
        let page = page.with_context(|| match shown {
            0 => "cannot list the control planes".to_owned(),
            shown => format!("the list broke off after {shown} control planes; try again"),
        })?;
        let items = page.items_at(&["items"]);
        if !items.is_empty() {
            show(items)?;
        }
        shown += items.len();
        let next = page.str_at(&["metadata", "continue"]);
        if next.is_empty() {
            return Ok(shown);
        }
        // Fail, because each page must have items and a new token: otherwise this loop might never
        // end.
        if items.is_empty() || next == token {
            bail!("the server reports more after {shown} control planes, but sends none");
        }
        next.clone_into(&mut token);
        path = format!("{first}&continue={}", escape(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;
    use std::cell::RefCell;

    fn page(names: &[&str], token: &str) -> Value {
        let items: Vec<Value> = names
            .iter()
            .map(|name| json!({"metadata": {"name": (*name)}}))
            .collect();
        json!({"metadata": {"continue": token}, "items": items})
    }

    /// Runs `pages` with these answers of the server. Returns the requested paths, the shown names,
    /// and the result.
    async fn walk(
        answers: Vec<Result<Value, Refusal>>,
    ) -> (Vec<String>, Vec<String>, Result<usize, String>) {
        let answers = RefCell::new(answers.into_iter());
        let (asked, mut shown) = (RefCell::default(), Vec::new());
        let fetch = async |path: String| {
            let asked: &RefCell<Vec<String>> = &asked;
            asked.borrow_mut().push(path);
            answers.borrow_mut().next().expect("one answer more")
        };
        let end = pages(fetch, |items| {
            let names = items
                .iter()
                .map(|item| item.str_at(&["metadata", "name"]).to_owned());
            shown.push(names.collect::<Vec<_>>().join(","));
            Ok(())
        });
        let end = end.await.map_err(|error| format!("{error:#}"));
        (asked.take(), shown, end)
    }

    #[tokio::test]
    async fn planes_are_fetched_and_shown_a_page_at_a_time() {
        let answers = vec![Ok(page(&["a", "b"], "to+ken=")), Ok(page(&["c"], ""))];
        let (asked, shown, end) = walk(answers).await;
        let path = "/apis/polyplane.dev/v1alpha1/controlplanes?limit=500";
        assert_eq!(
            asked,
            [path.to_owned(), format!("{path}&continue=to%2Bken%3D")]
        );
        assert_eq!(shown, ["a,b", "c"]);
        assert_eq!(end, Ok(3));
        let (_, shown, end) = walk(vec![Ok(page(&[], ""))]).await;
        assert!(shown.is_empty());
        assert_eq!(end, Ok(0));
    }

    #[tokio::test]
    async fn a_list_that_breaks_off_says_after_how_many_planes() {
        let expired = Refusal::Status {
            code: 410,
            message: "The provided continue parameter is too old".to_owned(),
        };
        let (_, shown, end) = walk(vec![Ok(page(&["a"], "t")), Err(expired)]).await;
        assert_eq!(shown, ["a"]);
        let said = end.expect_err("it broke off");
        assert!(
            said.contains("after 1 control planes") && said.contains("too old"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_server_that_promises_more_for_ever_is_left() {
        for second in [page(&["b"], "t"), page(&[], "u")] {
            let (asked, _, end) = walk(vec![Ok(page(&["a"], "t")), Ok(second)]).await;
            assert_eq!(asked.len(), 2);
            assert!(end.expect_err("it ends").contains("sends none"));
        }
    }
}
