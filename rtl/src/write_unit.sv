// SPDX-License-Identifier: Apache-2.0
//
// Acts on the verdict of the comparators: answers, gives values their place, and writes the lines
// that change. An item whose value was overwritten in the log is none: it counts as expired and
// matches no key. The rules, in this order (docs/pipeline.md):
//
// 1. A write frees every other slot of its bucket that has expired.
// 2. SET with a match overwrites in place, also in a full bucket. The value stays where it is if it
//    needs no more beats than the old one and that lies in the log's later half; otherwise it is
//    appended, so what is set again and again never becomes the oldest.
// 3. SET without one takes the lowest free slot, else the slot that the new key's check points at;
//    where nothing may be evicted it is refused.
// 4. DELETE clears its slot. Without a key it is a sweep, which is not answered.

module write_unit
  import ht_pkg::*;
#(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 8,
  parameter int unsigned StripeWords = 1,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyWord = 1,
  parameter int unsigned TermsWord = 3,
  parameter int unsigned ValueBytes = 1024,
  parameter int unsigned AddressWidth = 32,
  localparam int unsigned BeatWords = StripeWords * SlotsPerBeat,
  localparam int unsigned BeatWidth = 64 * BeatWords,
  localparam int unsigned StripeWidth = 64 * StripeWords,
  localparam int unsigned LineBeats = Slots / SlotsPerBeat,
  localparam int unsigned LineWidth = $clog2(Lines + 1),
  localparam int unsigned Largest = (ValueBytes + 8 + 8 * BeatWords - 1) / (8 * BeatWords),
  localparam int unsigned CountWidth = $clog2(Largest + 1)
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic                    evict_i,        // a full bucket gives up a slot
  input  logic                    table_only_i,   // values are stored elsewhere

  input  logic                    valid_i,
  output logic                    ready_o,
  input  op_t                     op_i,
  input  logic [Slots-1:0]        match_i,
  input  logic [Slots-1:0]        free_i,
  input  logic [Slots-1:0]        expired_i,
  input  logic [Slots-1:0]        young_i,        // values in the log's later half
  input  logic [Slots-1:0][63:0]  locators_i,
  input  logic [Slots-1:0][63:0]  terms_i,
  input  logic [47:0]             kept_pointer_i, // of a match that is forwarded
  input  logic [23:0]             kept_vlen_i,
  output logic [LineWidth-1:0]    line_o,
  input  logic [StripeWidth-1:0]  stripe_i,
  input  logic [StripeWords-1:0]  mask_i,

  input  logic [47:0]             head_i,         // where the log goes on
  output logic                    put_o,          // what the write of a key leaves behind
  output logic [Slots-1:0]        put_free_o,
  output logic                    put_has_item_o,
  output logic [$clog2(Slots)-1:0] put_slot_o,
  output logic [47:0]             put_pointer_o,
  output logic                    append_o,
  output logic [CountWidth-1:0]   beats_o,

  output logic                    write_valid_o,
  input  logic                    write_ready_i,
  output logic [AddressWidth-1:0] write_address_o,
  output logic [BeatWidth-1:0]    write_data_o,
  output logic [BeatWords-1:0]    write_mask_o,
  output logic                    write_last_o,   // of its line
  output logic                    retire_o,       // to the concurrency control

  output logic                    value_valid_o,
  input  logic                    value_ready_i,
  output value_command_t          value_o,
  output logic                    response_valid_o,
  input  logic                    response_ready_i,
  output response_t               response_o
);

  localparam int unsigned LengthWidth = $clog2(ValueBytes + 1);
  localparam int unsigned TermsLine = TermsWord / StripeWords;
  localparam int unsigned SlotWidth = $clog2(Slots);
  localparam int unsigned GroupWidth = LineBeats > 1 ? $clog2(LineBeats) : 1;
  localparam logic [GroupWidth-1:0] LastGroup = GroupWidth'(LineBeats - 1);

  // The beats of a value and the 8 bytes in front of it. A division would be slower.
  function automatic logic [CountWidth-1:0] beats_of(logic [LengthWidth-1:0] vlen);
    beats_of = CountWidth'(1);
    for (int unsigned b = 1; b < Largest; b++) begin
      if (32'(vlen) > 8 * BeatWords * b - 8) beats_of = CountWidth'(b + 1);
    end
  endfunction

  function automatic logic [SlotWidth-1:0] lowest(logic [Slots-1:0] set);
    lowest = '0;
    for (int i = Slots - 1; i >= 0; i--) if (set[i]) lowest = SlotWidth'(i);
  endfunction

  typedef enum logic [1:0] {StDecide, StAppend, StWrite, StFinish} state_e;
  state_e state_q;

  // The decision, registered.
  logic [Slots-1:0]     clear_q;     // slots whose headers are cleared
  logic [SlotWidth-1:0] target_q;
  logic                 is_placed_q; // the target gets a header
  logic                 is_insert_q; // and a key
  logic                 is_young_q;  // the match's value
  logic [15:0]          status_q;
  logic [CountWidth-1:0] old_beats_q, beats_q;
  logic [47:0]          pointer_q;   // a position in the log
  logic [LineWidth-1:0] line_q;
  logic [GroupWidth-1:0] group_q;

  // Decision about the request: its match, its target slot and the slots to clear.
  logic is_write, is_set, is_sweep, has_match, is_hit, is_full;
  logic [Slots-1:0]     reclaimed, available;
  logic [SlotWidth-1:0] matched, target;
  logic [23:0]          old_vlen;
  logic [47:0]          old_pointer;
  meta_t                meta;

  assign meta          = op_i.meta;
  assign is_set        = meta.kind == KindSet;
  assign is_write      = is_set || meta.kind == KindDelete;
  assign is_sweep      = meta.kind == KindDelete && meta.request.klen == '0;
  assign matched       = lowest(match_i);
  assign has_match     = match_i != '0;
  assign is_hit        = (match_i & ~expired_i) != '0;
  assign old_vlen      = op_i.is_forwarded ? kept_vlen_i : terms_i[matched][55:32];
  assign old_pointer   = op_i.is_forwarded ? kept_pointer_i : locators_i[matched][47:0];
  assign reclaimed     = expired_i & ~match_i;
  assign available     = free_i | reclaimed;
  assign is_full       = available == '0 && !has_match;
  assign target        = has_match ? matched
                       : is_full ? op_i.check[SlotWidth-1:0] : lowest(available);

  // The value is appended unless it stays where the old one is. Values that are stored elsewhere
  // have no beats here, so they never become old.
  assign append_o = state_q == StAppend && is_placed_q
                    && (is_insert_q || !is_young_q || beats_q > old_beats_q);
  assign beats_o  = table_only_i ? '0 : beats_q;

  // What is left behind is known before the last cycle, in which the next request may ask for it.
  assign put_o          = state_q == StAppend && !is_sweep;
  assign put_has_item_o = is_placed_q;
  assign put_slot_o     = target_q;
  assign put_pointer_o  = append_o ? head_i : pointer_q;
  always_comb begin
    put_free_o = free_i | clear_q;
    if (is_placed_q) put_free_o[target_q] = 1'b0;
  end

  // Writing of the lines that change.
  logic is_line_wanted, is_last_line, is_key_line, is_line_done;
  logic [LineWidth-1:0] last_key_line, last_key_line_q, last_line;
  logic [63:0] new_locator, new_terms;
  // Compared with each line's end: a division by StripeWords would be the slowest path of all. The
  // cycle of the decision knows it early enough.
  always_comb begin
    last_key_line = '0;
    for (int unsigned l = 1; l < Lines; l++) begin
      if (l * StripeWords <= KeyWord
          || 32'(meta.request.klen) > 8 * (l * StripeWords - KeyWord)) begin
        last_key_line = LineWidth'(l);
      end
    end
  end
  assign is_key_line    = is_insert_q && line_q <= last_key_line_q;
  assign is_line_wanted = line_q == '0 || line_q == LineWidth'(TermsLine) || is_key_line;
  assign last_line      = is_insert_q && last_key_line_q > LineWidth'(TermsLine)
                          ? last_key_line_q : LineWidth'(TermsLine);
  assign is_last_line   = line_q == last_line;
  assign is_line_done   = !is_line_wanted || (write_ready_i && group_q == LastGroup);

  assign new_locator = {meta.request.klen, op_i.check, pointer_q};
  assign new_terms   = {8'b0, meta.request.vlen, meta.request.expiry};
  assign line_o      = line_q;

  assign write_valid_o   = state_q == StWrite && is_line_wanted;
  assign write_address_o = AddressWidth'((op_i.bucket * Lines + 32'(line_q)) * LineBeats
                                         + 32'(group_q));
  assign write_last_o    = group_q == LastGroup;
  always_comb begin
    write_mask_o = '0;
    for (int unsigned p = 0; p < SlotsPerBeat; p++) begin
      logic [SlotWidth-1:0] slot;
      logic is_target;
      slot      = SlotWidth'(32'(group_q) * SlotsPerBeat + p);
      is_target = is_placed_q && slot == target_q;
      write_data_o[StripeWidth*p+:StripeWidth] = stripe_i;
      if (is_target && is_insert_q && is_key_line) begin
        write_mask_o[StripeWords*p+:StripeWords] = mask_i;
      end
      if (line_q == '0 && (is_target || clear_q[slot])) begin
        write_data_o[StripeWidth*p+:64] = is_target ? new_locator : '0;
        write_mask_o[StripeWords*p]     = 1'b1;
      end
      if (line_q == LineWidth'(TermsLine) && (is_target || clear_q[slot])) begin
        write_data_o[StripeWidth*p+64*(TermsWord%StripeWords)+:64] = is_target ? new_terms : '0;
        write_mask_o[StripeWords*p+TermsWord%StripeWords]          = 1'b1;
      end
    end
  end

  // Answers: reads answer at once, writes when they are done.
  logic is_read_done, is_value_wanted, finish;
  logic [15:0] status;
  always_comb begin
    status = meta.status;
    if (is_write && meta.status == StatusOk) status = status_q;
    if (meta.kind == KindGet && meta.status == StatusOk && !is_hit) status = StatusNotFound;
  end

  always_comb begin
    value_o         = '{kind: ValueDrain, pointer: pointer_q, vlen: meta.request.vlen,
                        flags: meta.request.flags};
    is_value_wanted = meta.drain;
    if (is_set) begin
      is_value_wanted = status == StatusOk || meta.request.vlen != '0;
      if (status == StatusOk) value_o.kind = ValueWrite;
    end else if (meta.kind == KindGet && status == StatusOk) begin
      is_value_wanted = 1'b1;
      value_o.kind    = ValueRead;
      value_o.pointer = old_pointer;
      value_o.vlen    = old_vlen;
    end
    // Without a value store, the client's value must still be discarded.
    if (table_only_i) begin
      is_value_wanted = (is_set || meta.drain) && meta.request.vlen != '0;
      value_o.kind    = ValueDrain;
    end
  end

  always_comb begin
    response_o = '{id: meta.request.id, opcode: meta.request.opcode, quiet: meta.quiet,
                   hit: 1'b0, status: status, vlen: '0, flags: '0, pointer: '0, now: op_i.now};
    if (meta.kind == KindGet && status == StatusOk) begin
      response_o.hit     = 1'b1;
      response_o.vlen    = old_vlen;
      response_o.pointer = old_pointer;
    end else if (is_set && status == StatusOk) begin
      response_o.pointer = pointer_q;
    end
  end

  assign is_read_done     = state_q == StDecide && valid_i && !is_write;
  assign finish           = is_read_done || state_q == StFinish;
  assign response_valid_o = finish && !is_sweep && (!is_value_wanted || value_ready_i);
  assign value_valid_o    = finish && is_value_wanted && response_ready_i;
  assign ready_o          = is_sweep ? finish : response_valid_o && response_ready_i;

  // Whether any word changes.
  logic is_writing;
  assign is_writing = clear_q != '0 || is_placed_q;

  // The last line was accepted, or nothing had to be written.
  assign retire_o = (state_q == StWrite && is_last_line && is_line_done)
                    || (state_q == StAppend && !is_writing);

  always_ff @(posedge clk_i) begin
    unique case (state_q)
      StDecide: begin
        target_q        <= target;
        last_key_line_q <= last_key_line;
        beats_q         <= beats_of(meta.request.vlen[LengthWidth-1:0]);
        old_beats_q     <= beats_of(old_vlen[LengthWidth-1:0]);
        is_young_q      <= young_i[matched];
        is_insert_q     <= is_set && !has_match;
        is_placed_q     <= is_set && (!is_full || evict_i);
        pointer_q       <= old_pointer;
        clear_q         <= reclaimed;
        status_q        <= StatusOk;
        if (is_set && is_full && !evict_i) status_q <= StatusNoMemory;
        if (meta.kind == KindDelete) begin
          clear_q <= expired_i | match_i;
          if (!is_hit) status_q <= StatusNotFound;
        end
      end
      StAppend: pointer_q <= put_pointer_o;
      default: ;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StDecide;
      line_q  <= '0;
      group_q <= '0;
    end else begin
      unique case (state_q)
        StDecide: if (valid_i && is_write) state_q <= StAppend;
        StAppend: state_q <= is_writing ? StWrite : StFinish;
        StWrite: begin
          if (is_line_wanted && write_ready_i) group_q <= write_last_o ? '0 : group_q + 1'b1;
          if (is_line_done) begin
            line_q <= is_last_line ? '0 : line_q + 1'b1;
            if (is_last_line) state_q <= StFinish;
          end
        end
        default: if (ready_o) state_q <= StDecide;
      endcase
    end
  end

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // A write retires once, not before the port has accepted all of its lines, and nothing of it is
  // offered to the port afterwards; a read never writes or retires. With the proof of
  // concurrency_control this gives: no request enters while an older writer of its address lies
  // between read issue and write acceptance.
  //
  // A value that is stored was appended, once, unless it stays in the place of the match's; nothing
  // else is appended.
  //
  // No request stays for ever: each cycle in which port, value store and answers are ready brings
  // it closer to its end (`f_rank`).
  localparam int unsigned RankWidth = $clog2(Lines * LineBeats + 4);
  localparam logic [RankWidth-1:0] Appending = RankWidth'(Lines * LineBeats + 2);
  logic                 f_is_retired_q, f_waits_q, f_is_ready_q, f_is_appended_q;
  op_t                  f_op_q;
  logic [4*Slots-1:0]   f_slots_q;
  logic [Slots-1:0][63:0] f_locators_q;
  logic [71:0]          f_kept_q;
  logic [RankWidth-1:0] f_rank, f_rank_q;

  always_comb begin
    unique case (state_q)
      StDecide:   f_rank = Appending + 1'b1;
      StAppend:   f_rank = Appending;
      StWrite:    f_rank = Appending - 1'b1 - RankWidth'(32'(line_q) * LineBeats + 32'(group_q));
      default:    f_rank = '0;
    endcase
  end

  always_ff @(posedge clk_i) begin
    f_op_q    <= op_i;
    f_slots_q <= {match_i, free_i, expired_i, young_i};
    f_locators_q <= locators_i;
    f_kept_q  <= {kept_pointer_i, kept_vlen_i};
    f_rank_q  <= f_rank;
    if (state_q == StDecide) f_is_appended_q <= 1'b0;
    else if (append_o) f_is_appended_q <= 1'b1;
  end
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      f_is_retired_q <= 1'b0;
      f_waits_q      <= 1'b0;
      f_is_ready_q   <= 1'b0;
    end else begin
      f_is_retired_q <= (f_is_retired_q || retire_o) && !ready_o;
      f_waits_q      <= valid_i && !ready_o;
      f_is_ready_q   <= write_ready_i && value_ready_i && response_ready_i;
    end
  end

  always_comb begin
    if (rst_ni) begin
      // A waiting request does not change, its key fits, and free slots hold no item and no expiry.
      if (f_waits_q) assume (valid_i && op_i == f_op_q);
      if (f_waits_q) assume ({match_i, free_i, expired_i, young_i} == f_slots_q
                             && locators_i == f_locators_q
                             && {kept_pointer_i, kept_vlen_i} == f_kept_q);
      if (is_write && !is_sweep) begin
        assume (meta.request.klen != '0
                && (KeyWord + (32'(meta.request.klen) - 1) / 8) / StripeWords < Lines);
      end
      assume ((free_i & (match_i | expired_i)) == '0);
      if (is_sweep) assume (match_i == '0 && !meta.drain);
      assert (!(is_sweep && (response_valid_o || value_valid_o || append_o)));

      assert (!retire_o || (valid_i && is_write && !f_is_retired_q));
      assert (!write_valid_o || (is_write && !f_is_retired_q));
      assert (!(retire_o && write_valid_o && !(write_ready_i && write_last_o)));
      if (ready_o) assert (valid_i && (f_is_retired_q == is_write));

      // Only writes append, and once.
      assert (!append_o || (is_write && !f_is_retired_q && !f_is_appended_q));
      if (state_q == StWrite || state_q == StFinish) begin
        if (is_placed_q && !f_is_appended_q) begin
          assert (match_i[target_q] && young_i[target_q] && old_beats_q >= beats_q);
        end
        assert (!f_is_appended_q || (is_placed_q && is_set));
      end
      if (state_q != StDecide) begin
        assert (state_q != StAppend || !f_is_appended_q);
        assert (!is_placed_q || (is_set && is_insert_q == !has_match));
        assert (!has_match || (is_young_q == young_i[matched]
                               && (!is_placed_q || target_q == matched)));
        if (has_match && !f_is_appended_q) assert (pointer_q == old_pointer);
        // A slot that gets another key was free, expired or given up.
        if (is_placed_q && is_insert_q) assert (free_i[target_q] || expired_i[target_q] || is_full);
      end

      if (f_waits_q && f_is_ready_q) assert (f_rank < f_rank_q);
      if (valid_i && write_ready_i && value_ready_i && response_ready_i) begin
        assert (ready_o == (state_q == StFinish || (state_q == StDecide && !is_write)));
      end

      // Invariants that the induction needs.
      assert (f_is_retired_q == (state_q == StFinish));
      assert (state_q == StDecide || (f_waits_q && valid_i && is_write));
      assert (state_q == StWrite ? line_q <= last_line : line_q == '0);
      assert (group_q <= LastGroup);
      assert (group_q == '0 || (state_q == StWrite && is_line_wanted));
    end
  end
`endif

endmodule
