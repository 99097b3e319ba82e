// SPDX-License-Identifier: Apache-2.0
//
// Acts on the verdict of the comparators: answers, frees and allocates addresses, and writes the
// lines that change. The rules, in this order (docs/pipeline.md):
//
// 1. A write frees every other slot of its bucket that has expired.
// 2. SET with a match overwrites in place, also in a full bucket; the value stays where it is if
//    its new length has the same block size.
// 3. SET without one takes the lowest free slot, else the slot that the new key's check points at;
//    where nothing may be evicted it is refused.
// 4. DELETE clears its slot. A SET that finds no address leaves its target slot cleared.
//
// Addresses are freed before one is allocated, so an address freed by a write can be reused by it.

module write_unit
  import ht_pkg::*;
#(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 8,
  parameter int unsigned StripeWords = 1,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyWord = 1,
  parameter int unsigned TermsWord = 3,
  parameter int unsigned PointerShift = 6,  // a pointer is a beat's index shifted by this
  parameter int unsigned ClassShift = 3,    // blocks of a class are 2 to this times the last's
  parameter int unsigned Classes = 3,
  parameter int unsigned AddressWidth = 32,
  localparam int unsigned BeatWords = StripeWords * SlotsPerBeat,
  localparam int unsigned BeatWidth = 64 * BeatWords,
  localparam int unsigned StripeWidth = 64 * StripeWords,
  localparam int unsigned LineBeats = Slots / SlotsPerBeat,
  localparam int unsigned LineWidth = $clog2(Lines + 1),
  localparam int unsigned ClassWidth = Classes > 1 ? $clog2(Classes) : 1
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
  input  logic [Slots-1:0][63:0]  locators_i,
  input  logic [Slots-1:0][63:0]  terms_i,
  output logic [LineWidth-1:0]    line_o,
  input  logic [StripeWidth-1:0]  stripe_i,
  input  logic [StripeWords-1:0]  mask_i,

  output logic                    free_valid_o,
  output logic [ClassWidth-1:0]   free_class_o,
  output logic [47:0]             free_pointer_o,
  output logic [ClassWidth-1:0]   alloc_class_o,
  output logic                    alloc_take_o,
  input  logic                    alloc_valid_i,
  input  logic [47:0]             alloc_pointer_i,

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

  localparam int unsigned BlockBytes = BeatWords * 8;
  localparam int unsigned TermsLine = TermsWord / StripeWords;
  localparam int unsigned SlotWidth = $clog2(Slots);
  localparam int unsigned GroupWidth = LineBeats > 1 ? $clog2(LineBeats) : 1;
  localparam logic [GroupWidth-1:0] LastGroup = GroupWidth'(LineBeats - 1);

  if (Classes < 1 || Classes > 4) begin : gen_check
    $error("write_unit: Classes must be 1 to 4");
  end

  // The block size of a value: its bytes and the 8 in front of them, in beats of the memory.
  function automatic logic [ClassWidth-1:0] class_of(logic [23:0] vlen);
    class_of = ClassWidth'(Classes - 1);
    for (int c = Classes - 2; c >= 0; c--) begin
      if (32'(vlen) <= (BlockBytes << (ClassShift * c)) - 8) class_of = ClassWidth'(c);
    end
  endfunction

  function automatic logic [SlotWidth-1:0] lowest(logic [Slots-1:0] set);
    lowest = '0;
    for (int i = Slots - 1; i >= 0; i--) if (set[i]) lowest = SlotWidth'(i);
  endfunction

  typedef enum logic [2:0] {StDecide, StFree, StAllocate, StWrite, StFinish} state_e;
  state_e state_q;

  // The decision, registered.
  logic [Slots-1:0]     returns_q;   // slots whose addresses are freed
  logic [Slots-1:0]     clear_q;     // slots whose headers are cleared
  logic [SlotWidth-1:0] target_q;
  logic                 is_placed_q; // the target gets a header
  logic                 is_insert_q; // and a key
  logic                 needs_address_q;
  logic [15:0]          status_q;
  // Block sizes of the stored values and of the new one; computed in parallel with the decision,
  // off the path to the address queues.
  logic [ClassWidth-1:0] classes_q [Slots];
  logic [ClassWidth-1:0] new_class_q;
  logic [47:0]          pointer_q;   // in beats
  logic [LineWidth-1:0] line_q;
  logic [GroupWidth-1:0] group_q;

  // Decision about the request: its match, its target slot and the slots to clear.
  logic is_write, is_set, has_match, is_hit, is_same_class, is_full;
  logic [Slots-1:0]     reclaimed, available, target_mask;
  logic [SlotWidth-1:0] matched, target;
  logic [23:0]          old_vlen;
  meta_t                meta;

  assign meta          = op_i.meta;
  assign is_set        = meta.kind == KindSet;
  assign is_write      = is_set || meta.kind == KindDelete;
  assign matched       = lowest(match_i);
  assign has_match     = match_i != '0;
  assign is_hit        = (match_i & ~expired_i) != '0;
  assign old_vlen      = terms_i[matched][55:32];
  assign is_same_class = class_of(old_vlen) == class_of(meta.request.vlen);
  assign reclaimed     = expired_i & ~match_i;
  assign available     = free_i | reclaimed;
  assign is_full       = available == '0 && !has_match;
  assign target        = has_match ? matched
                       : is_full ? op_i.check[SlotWidth-1:0] : lowest(available);
  assign target_mask   = Slots'(1) << target;

  // Frees addresses, one a cycle: those of expired slots first, the match last.
  logic [SlotWidth-1:0] returning;
  logic [Slots-1:0]     expired_returns, left_returns;
  assign expired_returns = returns_q & ~match_i;
  assign returning       = lowest(expired_returns != '0 ? expired_returns : returns_q);
  assign left_returns    = returns_q & ~(Slots'(1) << returning);
  assign free_valid_o   = state_q == StFree && returns_q != '0;
  assign free_class_o   = classes_q[returning];
  assign free_pointer_o = locators_i[returning][47:0] >> PointerShift;

  assign alloc_class_o = new_class_q;
  assign alloc_take_o  = state_q == StAllocate && needs_address_q && alloc_valid_i;

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

  assign new_locator = {meta.request.klen, op_i.check, pointer_q << PointerShift};
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
      value_o.pointer = locators_i[matched][47:0] >> PointerShift;
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
      response_o.pointer = locators_i[matched][47:0];
    end else if (is_set && status == StatusOk) begin
      response_o.pointer = pointer_q << PointerShift;
    end
  end

  assign is_read_done     = state_q == StDecide && valid_i && !is_write;
  assign finish           = is_read_done || state_q == StFinish;
  assign response_valid_o = finish && (!is_value_wanted || value_ready_i);
  assign value_valid_o    = finish && is_value_wanted && response_ready_i;
  assign ready_o          = response_valid_o && response_ready_i;

  // Whether any word changes. Known when the address is.
  logic is_writing;
  assign is_writing = clear_q != '0 || (is_placed_q && (!needs_address_q || alloc_valid_i));

  // The last line was accepted, or nothing had to be written.
  assign retire_o = (state_q == StWrite && is_last_line && is_line_done)
                    || (state_q == StAllocate && !is_writing);

  always_ff @(posedge clk_i) begin
    unique case (state_q)
      StDecide: begin
        target_q        <= target;
        last_key_line_q <= last_key_line;
        new_class_q     <= class_of(meta.request.vlen);
        for (int unsigned i = 0; i < Slots; i++) classes_q[i] <= class_of(terms_i[i][55:32]);
        is_insert_q     <= is_set && !has_match;
        is_placed_q     <= is_set && (!is_full || evict_i);
        needs_address_q <= is_set && (!has_match || !is_same_class) && (!is_full || evict_i);
        pointer_q       <= locators_i[matched][47:0] >> PointerShift;
        returns_q       <= reclaimed;
        clear_q         <= reclaimed;
        status_q        <= StatusOk;
        if (is_set) begin
          if (has_match && !is_same_class) begin
            returns_q <= reclaimed | match_i;
            clear_q   <= reclaimed | match_i;
          end
          if (is_full) begin
            status_q <= evict_i ? StatusOk : StatusNoMemory;
            if (evict_i) begin
              returns_q <= reclaimed | target_mask;
              clear_q   <= reclaimed | target_mask;
            end
          end
        end else if (meta.kind == KindDelete) begin
          returns_q <= reclaimed | match_i;
          clear_q   <= reclaimed | match_i;
          if (!is_hit) status_q <= StatusNotFound;
        end
      end
      StFree: returns_q <= left_returns;
      StAllocate: begin
        if (needs_address_q) begin
          pointer_q <= alloc_pointer_i;
          if (!alloc_valid_i) begin
            is_placed_q <= 1'b0;
            is_insert_q <= 1'b0;
            status_q    <= StatusNoMemory;
          end
        end
      end
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
        StDecide: if (valid_i && is_write) state_q <= StFree;
        StFree: if (left_returns == '0) state_q <= StAllocate;
        StAllocate: state_q <= is_writing ? StWrite : StFinish;
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
  // No address is lost: each cleared slot frees its address once, and a slot that gets a new
  // address was free or cleared.
  //
  // No request stays for ever: each cycle in which port, value store and answers are ready brings
  // it closer to its end (`f_rank`).
  localparam int unsigned RankWidth = $clog2(Lines * LineBeats + Slots + 5);
  localparam logic [RankWidth-1:0] Allocating = RankWidth'(Lines * LineBeats + 2);
  logic                 f_is_retired_q, f_waits_q, f_is_ready_q;
  op_t                  f_op_q;
  logic [3*Slots-1:0]   f_slots_q;
  logic [Slots-1:0]     f_freed_q;
  logic [RankWidth-1:0] f_rank, f_rank_q;

  always_comb begin
    unique case (state_q)
      StDecide:   f_rank = Allocating + RankWidth'(Slots + 2);
      StFree: begin
        f_rank = Allocating + 1'b1;
        for (int unsigned i = 0; i < Slots; i++) f_rank = f_rank + RankWidth'(returns_q[i]);
      end
      StAllocate: f_rank = Allocating;
      StWrite:    f_rank = Allocating - 1'b1 - RankWidth'(32'(line_q) * LineBeats + 32'(group_q));
      default:    f_rank = '0;
    endcase
  end

  always_ff @(posedge clk_i) begin
    f_op_q    <= op_i;
    f_slots_q <= {match_i, free_i, expired_i};
    f_rank_q  <= f_rank;
    if (state_q == StDecide) f_freed_q <= '0;
    else if (free_valid_o) f_freed_q[returning] <= 1'b1;
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
      if (f_waits_q) assume ({match_i, free_i, expired_i} == f_slots_q);
      if (is_write) begin
        assume (meta.request.klen != '0
                && (KeyWord + (32'(meta.request.klen) - 1) / 8) / StripeWords < Lines);
      end
      assume ((free_i & (match_i | expired_i)) == '0);

      assert (!retire_o || (valid_i && is_write && !f_is_retired_q));
      assert (!write_valid_o || (is_write && !f_is_retired_q));
      assert (!(retire_o && write_valid_o && !(write_ready_i && write_last_o)));
      if (ready_o) assert (valid_i && (f_is_retired_q == is_write));

      // Only writes allocate or free addresses, and only from a queue that is not empty.
      assert (!(free_valid_o || alloc_take_o) || (is_write && !f_is_retired_q));
      assert (!alloc_take_o || alloc_valid_i);
      if (state_q != StDecide) begin
        assert ((f_freed_q & returns_q) == '0);
        assert ((f_freed_q | returns_q) == clear_q);
        assert (state_q == StFree || returns_q == '0);
        if (is_placed_q && needs_address_q) assert (clear_q[target_q] || free_i[target_q]);
        if (is_placed_q && !needs_address_q) assert (match_i[target_q]);
      end

      if (f_waits_q && f_is_ready_q) assert (f_rank < f_rank_q);
      if (valid_i && write_ready_i && value_ready_i && response_ready_i) begin
        assert (ready_o == (state_q == StFinish || (state_q == StDecide && !is_write)));
      end

      // Invariants that the induction needs.
      assert (state_q <= StFinish);
      assert (f_is_retired_q == (state_q == StFinish));
      assert (state_q == StDecide || (f_waits_q && valid_i && is_write));
      assert (state_q == StWrite ? line_q <= last_line : line_q == '0);
      assert (group_q <= LastGroup);
      assert (group_q == '0 || (state_q == StWrite && is_line_wanted));
    end
  end
`endif

endmodule
