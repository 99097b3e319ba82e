//! Byte scripts whose answers are the same for every server, with any engine.

/// What is sent, and the expected answer.
pub const SCRIPTS: &[(&str, &str)] = &[
    ("set a 1 0 5\r\nhello\r\n", "STORED\r\n"),
    ("get a\r\n", "VALUE a 1 5\r\nhello\r\nEND\r\n"),
    ("get b\r\n", "END\r\n"),
    ("get b a b a\r\n", "VALUE a 1 5\r\nhello\r\nVALUE a 1 5\r\nhello\r\nEND\r\n"),
    (
        "append a 0 0 2\r\n, \r\nprepend a 0 0 1\r\n>\r\nget a\r\n",
        "STORED\r\nSTORED\r\nVALUE a 1 8\r\n>hello, \r\nEND\r\n",
    ),
    ("add a 0 0 1\r\nx\r\nreplace b 0 0 1\r\nx\r\n", "NOT_STORED\r\nNOT_STORED\r\n"),
    (
        "set n 0 0 2\r\n41\r\nincr n 1\r\ndecr n 50\r\nget n\r\n",
        "STORED\r\n42\r\n0\r\nVALUE n 0 2\r\n0 \r\nEND\r\n",
    ),
    (
        "incr a 1\r\nincr nothing 1\r\n",
        "CLIENT_ERROR cannot increment or decrement non-numeric value\r\nNOT_FOUND\r\n",
    ),
    ("set a 0 0 3 noreply\r\nnew\r\nget a\r\n", "VALUE a 0 3\r\nnew\r\nEND\r\n"),
    ("touch a 100\r\ngat 100 a b\r\n", "TOUCHED\r\nVALUE a 0 3\r\nnew\r\nEND\r\n"),
    ("delete a\r\ndelete a\r\nget a\r\n", "DELETED\r\nNOT_FOUND\r\nEND\r\n"),
    ("set e 0 -1 1\r\nx\r\nget e\r\n", "STORED\r\nEND\r\n"),
    ("nonsense\r\n", "ERROR\r\n"),
    (
        "set a 0 0 x\r\nget \r\n",
        "CLIENT_ERROR bad command line format\r\nCLIENT_ERROR bad command line format\r\n",
    ),
    (
        "set a 0 0 3\r\ntoolong\r\nversion\r\n",
        "CLIENT_ERROR bad data chunk\r\nERROR\r\nVERSION 1.6.45\r\n",
    ),
    ("verbosity 1\r\nverbosity 0 noreply\r\nmn\r\n", "OK\r\nMN\r\n"),
    (
        "set z 0 0 0\r\n\r\nget z\r\nflush_all\r\nget z\r\nset z 7 0 1\r\nz\r\nget z\r\n",
        "STORED\r\nVALUE z 0 0\r\n\r\nEND\r\nOK\r\nEND\r\nSTORED\r\nVALUE z 7 1\r\nz\r\nEND\r\n",
    ),
    ("shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n"),
    // There are no certificates. The error is not silenced by `noreply`.
    (
        "refresh_certs\r\nrefresh_certs noreply\r\n",
        "Error TLS not enabled\r\nError TLS not enabled\r\n",
    ),
    ("stats reset\r\nstats nonsense\r\n", "RESET\r\nERROR\r\n"),
];
