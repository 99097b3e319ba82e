// SPDX-License-Identifier: Apache-2.0
//
// lookup3 in one unit instead of six: a ring of seven stages with a different key in each (C-slow).
// A key reaches stage 0, where words enter, every seventh cycle; together the seven keys take a
// word a cycle, as much as six units of six cycles. All words wait in one memory. One is read two
// cycles before it enters, so that a block RAM's output has a register of its own in front of the
// adders.

module hash_ring
  import ht_pkg::*;
#(
  parameter int unsigned Words = 32
) (
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic [63:0] seed_i,
  input  logic       valid_i,
  output logic       ready_o,
  input  hash_word_t word_i,
  output logic       valid_o,
  input  logic       ready_i,
  output hash_t      hash_o
);

  localparam int unsigned Stages = 7;
  localparam int unsigned WordWidth = $clog2(Words);
  localparam logic [2:0] Last = 3'(Stages - 1);

  if (Words != 2 ** WordWidth) begin : gen_check
    $error("hash_ring: Words must be a power of two");
  end

  // The words of each place in the ring, and their write and read pointers.
  hash_word_t           store [8 * Words];
  logic [WordWidth:0]   write_q [Stages];
  logic [WordWidth:0]   read_q  [Stages];
  logic [2:0]           give_q, take_q;   // next place to get a key, to give a hash
  logic [2:0]           place_q;          // the place at stage 0
  logic [2:0]           next_place, fetch_place;
  hash_word_t           fetched_q;        // the next place's oldest word
  logic                 has_fetched_q;
  hash_word_t           word_q;           // its oldest word
  logic                 has_word_q;
  state_t               first_q;          // the state in front of it, if it is a key's first
  logic [Stages-1:0]    is_middle_q;      // the place is inside a key
  logic [Stages-1:0]    is_busy_q;        // its hash is unfinished or not collected
  state_t               state_q [Stages];
  logic [Stages-1:0]    is_mix_q, is_final_q;   // what is done to the state of each stage
  state_t               entering;
  logic                 is_taken;
  logic [Stages-1:0]    done_q;
  hash_t                out_q [Stages];

  function automatic logic [2:0] after(logic [2:0] place);
    return place == Last ? '0 : place + 1'b1;
  endfunction

  assign next_place  = after(place_q);
  assign fetch_place = after(next_place);
  assign ready_o    = write_q[give_q] - read_q[give_q] != (WordWidth + 1)'(Words);
  // A key's last word waits until the hash before it was collected.
  assign is_taken   = has_word_q && !(word_q.last && is_busy_q[place_q]);

  state_t added;
  assign added = hash_add(is_middle_q[place_q] ? state_q[Stages-1] : first_q, word_q.data);
  always_comb begin
    entering = state_q[Stages-1];
    if (is_taken) entering = word_q.last ? hash_close(added) : added;
  end

  assign valid_o = done_q[take_q];
  assign hash_o  = out_q[take_q];

  always_ff @(posedge clk_i) begin
    if (valid_i && ready_o) store[{give_q, write_q[give_q][WordWidth-1:0]}] <= word_i;
    // Only stage 0 takes words from a place, so the fetched word is the one that will enter.
    fetched_q <= store[{fetch_place, read_q[fetch_place][WordWidth-1:0]}];
    word_q    <= fetched_q;
    first_q   <= hash_start(fetched_q.klen, seed_i);
    state_q[0] <= entering;
    for (int unsigned i = 1; i < Stages; i++) begin
      state_q[i] <= is_mix_q[i-1] || is_final_q[i-1]
          ? hash_step(state_q[i-1], is_final_q[i-1], 3'(i - 1)) : state_q[i-1];
    end
    if (is_final_q[Stages-1]) begin
      out_q[place_q] <= '{primary: state_q[Stages-1].c, check: state_q[Stages-1].b[31:24]};
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      for (int unsigned i = 0; i < Stages; i++) begin
        write_q[i] <= '0;
        read_q[i]  <= '0;
      end
      is_mix_q    <= '0;
      is_final_q  <= '0;
      give_q      <= '0;
      take_q      <= '0;
      place_q     <= '0;
      has_fetched_q <= 1'b0;
      has_word_q  <= 1'b0;
      is_middle_q <= '0;
      is_busy_q   <= '0;
      done_q      <= '0;
    end else begin
      place_q       <= next_place;
      has_fetched_q <= write_q[fetch_place] != read_q[fetch_place];
      has_word_q    <= has_fetched_q;
      if (valid_i && ready_o) begin
        write_q[give_q] <= write_q[give_q] + 1'b1;
        if (word_i.last) give_q <= after(give_q);
      end
      is_mix_q   <= {is_mix_q[Stages-2:0], is_taken && !word_q.last};
      is_final_q <= {is_final_q[Stages-2:0], is_taken && word_q.last};
      if (valid_o && ready_i) begin
        done_q[take_q]    <= 1'b0;
        is_busy_q[take_q] <= 1'b0;
        take_q            <= after(take_q);
      end
      if (is_taken) begin
        read_q[place_q]      <= read_q[place_q] + 1'b1;
        is_middle_q[place_q] <= !word_q.last;
        if (word_q.last) is_busy_q[place_q] <= 1'b1;
      end
      if (is_final_q[Stages-1]) done_q[place_q] <= 1'b1;
    end
  end

endmodule
