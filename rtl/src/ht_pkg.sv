// SPDX-License-Identifier: Apache-2.0
//
// Types of the streams between the stages of the table. docs/pipeline.md defines the words of a
// slot; opcodes and status codes are those of memcached's binary protocol.

package ht_pkg;

  localparam logic [7:0] OpGet = 8'h00;
  localparam logic [7:0] OpSet = 8'h01;
  localparam logic [7:0] OpDelete = 8'h04;
  localparam logic [7:0] OpGetQ = 8'h09;
  localparam logic [7:0] OpNoop = 8'h0a;
  localparam logic [7:0] OpVersion = 8'h0b;
  localparam logic [7:0] OpGetK = 8'h0c;
  localparam logic [7:0] OpGetKQ = 8'h0d;
  localparam logic [7:0] OpSetQ = 8'h11;
  localparam logic [7:0] OpDeleteQ = 8'h14;

  localparam logic [15:0] StatusOk = 16'h0000;
  localparam logic [15:0] StatusNotFound = 16'h0001;
  localparam logic [15:0] StatusTooLarge = 16'h0003;
  localparam logic [15:0] StatusInvalid = 16'h0004;
  localparam logic [15:0] StatusUnknown = 16'h0081;
  localparam logic [15:0] StatusNoMemory = 16'h0082;
  localparam logic [15:0] StatusNotSupported = 16'h0083;

  // The operation of a request. KindNone passes through the table in order, without effect.
  typedef enum logic [1:0] {KindNone, KindGet, KindSet, KindDelete} kind_e;

  // A request without its key and its value.
  typedef struct packed {
    logic [31:0] id;      // the client's, returned with the answer
    logic [7:0]  opcode;
    logic [7:0]  klen;    // bytes of the key; 0 from the pre-processor on: no key follows
    logic [23:0] vlen;    // bytes of the value
    logic [31:0] flags;
    logic [31:0] expiry;  // second in which the item ends; 0 never
    logic        has_cas;  // names a CAS id: SET and DELETE are refused, for items have none
    logic        is_misshapen;  // has extras, a key or a value that its opcode must not have
  } request_t;

  // A request inside the pipeline.
  typedef struct packed {
    request_t    request;
    kind_e       kind;
    logic        quiet;
    logic        drain;   // the packet buffer holds a value to discard
    logic [15:0] status;  // error found so far
  } meta_t;

  // A request that entered the critical section.
  typedef struct packed {
    meta_t       meta;
    logic [31:0] bucket;
    logic [7:0]  check;
    logic [31:0] now;
    logic        is_forwarded;  // decided by what the last write of its key left behind
    logic [5:0]  station;       // which keeps that
  } op_t;

  // The answer. Pointer and time serve the comparison with the software twin.
  typedef struct packed {
    logic [31:0] id;
    logic [7:0]  opcode;
    logic        quiet;
    logic        hit;
    logic [15:0] status;
    logic [23:0] vlen;
    logic [31:0] flags;
    logic [47:0] pointer;
    logic [31:0] now;
  } response_t;

  // The client of a request, and the fields that its answer repeats.
  typedef struct packed {
    logic [47:0] mac;
    logic [31:0] ip;
    logic [15:0] port;
    logic [15:0] frame_id;   // of memcached's UDP header
    logic [31:0] opaque;
    logic [7:0]  klen;       // bytes of the key that follows; 0: no key follows
    logic        wants_key;  // the answer repeats it
  } client_t;

  // A beat of a key stream or a value stream, with AXI-Stream's fields.
  typedef struct packed {
    logic [63:0] data;
    logic [7:0]  keep;  // the bytes that belong to the item
    logic        last;  // the beat ends the item
  } beat_t;

  // The reasons why frames are dropped in a cycle.
  typedef struct packed {
    logic overflow;   // the frame buffer has no space
    logic broken;     // the MAC reported a damaged frame
    logic other;      // another protocol, address or port, no station's source, or a fragment
    logic unsound;    // a wrong checksum of IPv4 or UDP
    logic malformed;  // not exactly one whole request
  } drops_t;

  // A beat of a key for the hash unit: 8 bytes, padded with zeros.
  typedef struct packed {
    logic [63:0] data;
    logic [7:0]  klen;
    logic        last;
  } key_beat_t;

  // 12 bytes of a key.
  typedef struct packed {
    logic [95:0] data;
    logic [7:0]  klen;
    logic        last;
  } hash_word_t;

  typedef struct packed {
    logic [31:0] primary;
    logic [7:0]  check;
  } hash_t;

  typedef enum logic [1:0] {ValueRead, ValueWrite, ValueDrain} value_kind_e;

  typedef struct packed {
    value_kind_e kind;
    logic [47:0] pointer;  // a position in the log, in beats of the memory port
    logic [23:0] vlen;
    logic [31:0] flags;
  } value_command_t;

  // An access at the port of memory. The widths of its data and its mask are parameters of the
  // modules, so they are signals of their own next to it.
  typedef struct packed {
    logic        write;     // a write of one beat; otherwise a read
    logic        last;      // the write ends its line; set for all other accesses
    logic        is_value;  // the tag that is returned with the data of a read
    logic [4:0]  count;     // beats to be read, from the address on
    logic [31:0] address;   // in beats
  } memory_access_t;

  // The lower `width` bits of an address, with those above folded onto them.
  function automatic logic [31:0] folded(logic [31:0] address, int unsigned width);
    logic [31:0] sum = '0;
    for (int unsigned i = 0; i < 32; i++) sum[i%width] ^= address[i];
    return sum;
  endfunction

  // lookup3, in a form in which the three state words change roles after each step, so that all
  // steps are alike. The two rows of rotations are those of mix and of final.
  localparam logic [5:0][4:0] MixRotations = '{4, 19, 16, 8, 6, 4};
  localparam logic [5:0][4:0] FinalRotations = '{24, 14, 4, 16, 25, 11};

  typedef struct packed {
    logic [31:0] a;
    logic [31:0] b;
    logic [31:0] c;
  } state_t;

  function automatic logic [31:0] rotate(logic [31:0] value, logic [4:0] places);
    return (value << places) | (value >> (6'd32 - 6'(places)));
  endfunction

  // The seed's lower half is added to all three words, its upper half to the third.
  function automatic state_t hash_start(logic [7:0] klen, logic [63:0] seed);
    logic [31:0] start = 32'hdead_beef + 32'(klen) + seed[31:0];
    return '{start, start, start + seed[63:32]};
  endfunction

  function automatic state_t hash_add(state_t state, logic [95:0] word);
    return '{state.a + word[31:0], state.b + word[63:32], state.c + word[95:64]};
  endfunction

  // The step of final without a counterpart in mix; it comes first and changes no roles.
  function automatic state_t hash_close(state_t state);
    state_t closed = state;
    closed.c = (state.c ^ state.b) - rotate(state.b, 5'd14);
    return closed;
  endfunction

  function automatic state_t hash_step(state_t state, logic is_final, logic [2:0] step);
    logic [31:0] turned = rotate(state.c, is_final ? FinalRotations[step] : MixRotations[step]);
    state_t next;
    next.a = state.b;
    next.b = is_final ? state.c : state.c + state.b;
    next.c = is_final ? (state.a ^ state.c) - turned : (state.a - state.c) ^ turned;
    return next;
  endfunction

endpackage
