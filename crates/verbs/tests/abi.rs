//! The C ABI against the system's: every struct's size and field offsets as the installed header's, and
//! every exported name and version as the installed library's. Where the header, a C compiler,
//! `readelf` or the library is missing, a test says `SKIPPED:` and passes.
#![allow(clippy::print_stdout, reason = "a test")]

use adverb_verbs::abi;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = "/usr/include/infiniband/verbs.h";
const CM_HEADER: &str = "/usr/include/rdma/rdma_cma.h";

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).expect("a folder for the test");
    path
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success())
}

/// What a C program that includes the header prints.
fn ask_the_header(name: &str, body: &str) -> String {
    let folder = folder(name);
    let (source, program) = (folder.join("ask.c"), folder.join("ask"));
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         #include <infiniband/sa.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n\
         #include <rdma/rdma_cma.h>\n\
         int main(void) {{\n{body}return 0;\n}}\n"
    );
    std::fs::write(&source, text).expect("the C source");
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).output().expect("cc runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let out = Command::new(&program).output().expect("the program runs");
    String::from_utf8(out.stdout).expect("ASCII")
}

fn can_ask() -> bool {
    let can = [HEADER, CM_HEADER].into_iter().all(|header| Path::new(header).exists()) && runs("cc");
    if !can {
        println!("SKIPPED: {HEADER}, {CM_HEADER} or cc is missing");
    }
    can
}

#[test]
fn structs_are_laid_out_as_in_the_header() {
    if !can_ask() {
        return;
    }
    let (mut body, mut expected) = (String::new(), String::new());
    for layout in abi::layouts() {
        let of = if ["verbs_", "ibv_", "ib_", "rdma_"].iter().any(|start| layout.name.starts_with(start)) {
            "struct "
        } else {
            ""
        };
        let name = format!("{of}{}", layout.name);
        writeln!(body, "printf(\"{name} %zu\\n\", sizeof({name}));").expect("a String");
        writeln!(expected, "{name} {}", layout.size).expect("a String");
        for (field, offset) in layout.fields {
            let field = field.trim_start_matches("r#");
            writeln!(body, "printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));")
                .expect("a String");
            writeln!(expected, "{name}.{field} {offset}").expect("a String");
        }
    }
    let actual = ask_the_header("layouts", &body);
    assert!(expected.lines().count() > 400, "the list of layouts is not empty");
    for (ours, theirs) in expected.lines().zip(actual.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(expected.lines().count(), actual.lines().count());
}

#[test]
fn the_unions_of_a_send_request_are_laid_out_as_in_the_header() {
    if !can_ask() {
        return;
    }
    use abi::{ibv_async_event, ibv_send_wr};
    use core::mem::offset_of;
    let ours = [
        ("wr.rdma.remote_addr", offset_of!(ibv_send_wr, wr.rdma.remote_addr)),
        ("wr.rdma.rkey", offset_of!(ibv_send_wr, wr.rdma.rkey)),
        ("wr.atomic.remote_addr", offset_of!(ibv_send_wr, wr.atomic.remote_addr)),
        ("wr.atomic.compare_add", offset_of!(ibv_send_wr, wr.atomic.compare_add)),
        ("wr.atomic.swap", offset_of!(ibv_send_wr, wr.atomic.swap)),
        ("wr.atomic.rkey", offset_of!(ibv_send_wr, wr.atomic.rkey)),
        ("wr.ud.ah", offset_of!(ibv_send_wr, wr.ud.ah)),
        ("wr.ud.remote_qpn", offset_of!(ibv_send_wr, wr.ud.remote_qpn)),
        ("wr.ud.remote_qkey", offset_of!(ibv_send_wr, wr.ud.remote_qkey)),
        ("qp_type.xrc.remote_srqn", offset_of!(ibv_send_wr, qp_type.remote_srqn)),
        ("bind_mw.mw", offset_of!(ibv_send_wr, bind_mw.mw)),
        ("bind_mw.rkey", offset_of!(ibv_send_wr, bind_mw.rkey)),
        ("bind_mw.bind_info.length", offset_of!(ibv_send_wr, bind_mw.bind_info.length)),
        ("invalidate_rkey", offset_of!(ibv_send_wr, imm_data)),
    ];
    let mut body = String::new();
    for (field, _) in ours {
        writeln!(body, "printf(\"%zu\\n\", offsetof(struct ibv_send_wr, {field}));").expect("a String");
    }
    writeln!(body, "printf(\"%zu\\n\", offsetof(struct ibv_async_event, element.port_num));")
        .expect("a String");
    let theirs = ask_the_header("unions", &body);
    let expected = ours.map(|(_, offset)| offset).into_iter().chain([offset_of!(ibv_async_event, element)]);
    for (ours, theirs) in expected.zip(theirs.lines()) {
        assert_eq!(ours.to_string(), theirs);
    }
}

#[test]
fn constants_of_rdma_cm_are_those_of_the_header() {
    if !can_ask() {
        return;
    }
    let mut body = String::new();
    for (name, value) in abi::CM_CONSTANTS {
        writeln!(body, "if ((long long)({name}) != {value}ll) printf(\"{name}\\n\");").expect("a String");
    }
    assert!(abi::CM_CONSTANTS.len() > 30, "the constants were found");
    assert_eq!(ask_the_header("cm_constants", &body), "");
}

#[test]
fn constants_are_those_of_the_header() {
    if !can_ask() {
        return;
    }
    // Each constant's value is read from this crate's source, so that none can be forgotten here.
    let source = include_str!("../src/abi/consts.rs");
    let not_in_header =
        ["IBV_GID_TYPE_SYSFS_ROCE_V2", "IBV_WIDTH_4X", "IBV_SPEED_25_GBPS", "IBV_PHYS_LINK_UP"];
    let mut body = String::new();
    let mut count = 0;
    for line in source.lines() {
        let Some((name, value)) = line.trim().trim_end_matches(',').split_once(" = ") else { continue };
        if !name.starts_with("IBV_") || not_in_header.contains(&name) {
            continue;
        }
        writeln!(
            body,
            "if ((long long)({name}) != (long long)({})) printf(\"{name}\\n\");",
            value.replace('_', "")
        )
        .expect("a String");
        count += 1;
    }
    assert!(count > 100, "the constants were found");
    assert_eq!(ask_the_header("constants", &body), "");
}

/// The dynamic symbols that a library defines, with their versions.
fn exports(library: &Path) -> BTreeSet<String> {
    let out = Command::new("readelf").args(["--dyn-syms", "-W"]).arg(library).output().expect("readelf runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let defined = words.len() >= 8 && words[0].ends_with(':') && words[6] != "UND";
            defined.then(|| words[7].to_owned())
        })
        .collect()
}

/// The static library that cargo made beside this test.
fn static_library() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let deps = test.parent()?;
    let mut found: Vec<PathBuf> = std::fs::read_dir(deps)
        .ok()?
        .chain(std::fs::read_dir(deps.parent()?).ok()?)
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            name.starts_with("libadverb_verbs") && name.ends_with(".a")
        })
        .collect();
    found.sort_by_key(|path| std::fs::metadata(path).and_then(|m| m.modified()).ok());
    found.pop()
}

#[test]
fn exports_are_those_of_the_system_libraries() {
    let system =
        ["libibverbs.so.1", "librdmacm.so.1"].map(|name| Path::new("/usr/lib/x86_64-linux-gnu").join(name));
    if !system.iter().all(|path| path.exists()) || !runs("readelf") || !runs("cc") {
        println!("SKIPPED: {system:?}, readelf or cc is missing");
        return;
    }
    let Some(archive) = static_library() else {
        println!("SKIPPED: no libadverb_verbs.a; build the crate first");
        return;
    };
    let out = folder("exports");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("link.sh");
    let linked = Command::new(script).arg(&archive).arg(&out).output().expect("link.sh runs");
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    assert_eq!(
        std::fs::canonicalize(out.join("librdmacm.so.1")).expect("the second name"),
        std::fs::canonicalize(out.join("libibverbs.so.1")).expect("the library"),
        "both names are one library, so that a process has one NIC"
    );
    let ours = exports(&out.join("libibverbs.so.1"));
    let [verbs, cm] = system.map(|path| exports(&path));
    assert!(verbs.len() > 150 && cm.len() > 70, "the system libraries' symbols were read");
    let theirs: BTreeSet<String> = verbs.union(&cm).cloned().collect();
    let missing: Vec<_> = theirs.difference(&ours).collect();
    // Calls of our own have a version node of their own; later and private nodes have a test of their own.
    let node = |name: &str| name.rsplit('@').next().unwrap_or_default().to_owned();
    let known: BTreeSet<String> = theirs.iter().map(|name| node(name)).collect();
    let apart = |name: &&String| {
        let node = node(name);
        !known.contains(&node)
            && (node.starts_with("ADVERB_")
                || CM_LATER.contains(&node.as_str())
                || LATER.iter().any(|(later, _)| node == *later))
    };
    let extra: Vec<_> = ours.difference(&theirs).filter(|name| !apart(name)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    assert!(extra.is_empty(), "exported beyond the system library: {extra:?}");
    for (later, names) in LATER {
        let has = |name: &str, mark: &str| ours.contains(&format!("{name}{mark}{later}"));
        if later.contains("PRIVATE") {
            for name in theirs.iter().filter(|name| name.ends_with("@@IBVERBS_PRIVATE_34")) {
                let name = name.replace("@@IBVERBS_PRIVATE_34", "");
                let name = name.replace("driver_34", &later.replace("IBVERBS_PRIVATE", "driver"));
                assert!(has(&name, "@"), "{name} is not in {later}");
            }
        }
        let mark = if later.contains("PRIVATE") { "@" } else { "@@" };
        for name in names.split(' ') {
            assert!(has(name, mark), "{name} is not in {later}");
        }
    }
}

/// Nodes of librdmacm newer than the system's.
const CM_LATER: [&str; 2] = ["RDMACM_1.4", "RDMACM_1.5"];

/// Nodes of versions of rdma-core other than the system's, and names that they have.
const LATER: [(&str, &str); 10] = [
    ("IBVERBS_1.15", "ibv_alloc_dmah ibv_dealloc_dmah ibv_reg_mr_ex"),
    ("IBVERBS_1.16", "ibv_dm_export_dmabuf_fd ibv_query_port_speed"),
    ("IBVERBS_1.17", "ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr"),
    (
        "IBVERBS_1.18",
        "_ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr ibv_read_comp_cntr \
         ibv_read_err_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_set_comp_cntr \
         ibv_set_err_comp_cntr ibv_qp_attach_comp_cntr ibv_export_buf_dmabuf_fd",
    ),
    ("IBVERBS_PRIVATE_25", "ibv_cmd_query_device ibv_cmd_query_device_ex"),
    ("IBVERBS_PRIVATE_33", "ibv_cmd_query_device_ex"),
    ("IBVERBS_PRIVATE_57", "ibv_cmd_alloc_dmah"),
    ("IBVERBS_PRIVATE_59", "ibv_cmd_alloc_dmah ibv_cmd_reg_mr_ex"),
    ("IBVERBS_PRIVATE_64", "ibv_cmd_create_cq_ex2"),
    ("IBVERBS_PRIVATE_65", "ibv_cmd_query_comp_cntr_caps ibv_dmabuf_heap_alloc ibv_wr_opcode_str"),
];
