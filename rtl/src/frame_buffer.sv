// SPDX-License-Identifier: Apache-2.0
//
// Buffers whole frames between the MAC and the request parser. It never makes the MAC wait: a frame
// that does not fit is dropped whole, as is one that the MAC reports as broken; each is counted.
// The checksums of IPv4 (without options) and UDP are summed as a frame arrives, by four lanes of
// 16 bits each, and the verdict follows the last beat by four cycles. A frame is offered with its
// verdict, so the parser knows it before the first byte. Beats are in block RAM with an extra
// output register; the first two of a frame pass it while the verdict is on its way.

module frame_buffer #(
  parameter int unsigned Beats = 512,    // of 8 bytes; a power of two
  parameter int unsigned Frames = 32,
  localparam int unsigned PlaceWidth = $clog2(Beats)
) (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        valid_i,
  input  logic [63:0] data_i,     // a frame's first byte is the lowest of its first beat
  input  logic [7:0]  keep_i,     // of the last beat
  input  logic        last_i,
  input  logic        bad_i,      // with the last beat: the frame's check sequence is wrong

  output logic        valid_o,
  input  logic        ready_i,
  output logic [63:0] data_o,
  output logic        last_o,
  output logic [15:0] bytes_o,    // of the frame
  output logic        is_sound_o, // its checksums are right

  output logic        overflow_o, // a frame was dropped for lack of space
  output logic        broken_o    // a frame was broken
);

  if (2 ** PlaceWidth != Beats || Beats < 256) begin : gen_check
    $error("frame_buffer: Beats must be a power of two, and room for a frame of 1,518 bytes");
  end

  logic [64:0] store [Beats];   // whether a beat is its frame's last, and its bytes
  logic [PlaceWidth:0] write_q, commit_q, read_q;
  logic [15:0] offset_q;   // of the beat in its frame
  logic is_lost_q, is_full, is_end, is_kept, has_frame_room, take;
  logic [3:0] count;       // bytes of the beat

  // Frames that were kept and not yet read; their verdicts may still be on their way.
  localparam int unsigned FramesWidth = $clog2(Frames + 1);
  logic [FramesWidth-1:0] frames_q;
  assign has_frame_room = frames_q != FramesWidth'(Frames);

  assign is_full = write_q - read_q == (PlaceWidth + 1)'(Beats);
  assign is_end  = valid_i && last_i;
  assign is_kept = is_end && !bad_i && !is_lost_q && !is_full && has_frame_room;
  assign broken_o   = is_end && bad_i;
  assign overflow_o = is_end && !bad_i && !is_kept;

  always_comb begin
    count = 4'd8;
    if (last_i) begin
      count = '0;
      for (int unsigned i = 0; i < 8; i++) count = count + 4'(keep_i[i]);
    end
  end

  // The words of a beat that belong to each sum, big endian, an odd byte with a zero behind it.
  // IPv4 has bytes 14 to 33 of a frame. UDP's sum covers the addresses from byte 26 on, the
  // protocol, and the datagram from byte 34 on with its length once more.
  logic [2:0]       beat_q;       // of the frame; 6: a later one
  logic [15:0]      udp_bytes, udp_left_q;   // of the datagram, from beat 5 on
  logic [3:0][15:0] ip_words, udp_words;
  assign udp_bytes = {data_i[55:48], data_i[63:56]};   // of beat 4
  always_comb begin
    ip_words  = '0;
    udp_words = '0;
    for (int unsigned i = 0; i < 8; i++) begin
      logic is_ip, is_udp;
      unique case (beat_q)
        3'd1:       {is_ip, is_udp} = {i >= 6, 1'b0};
        3'd2:       {is_ip, is_udp} = 2'b10;
        3'd3:       {is_ip, is_udp} = {1'b1, i >= 2};
        3'd4:       {is_ip, is_udp} = {i < 2, 1'b1};
        3'd5, 3'd6: {is_ip, is_udp} = {1'b0, 16'(i) < udp_left_q};
        default:    {is_ip, is_udp} = 2'b00;
      endcase
      if (!last_i || keep_i[i]) begin
        if (is_ip) ip_words[i/2][8*(1-i%2)+:8] = data_i[8*i+:8];
        if (is_udp) udp_words[i/2][8*(1-i%2)+:8] = data_i[8*i+:8];
      end
    end
  end

  // From stage to stage, a register each: words, sums of lanes (a lane's carry is added with its
  // next word), pairs of lanes, sums. A sum that folds to all ones is right.
  typedef struct packed {
    logic        is_kept;   // the frame ends here
    logic [15:0] bytes;
    logic        has_checksum;
  } end_t;
  end_t             end2_q, end3_q, end4_q;
  logic             is_beat1_q, is_first1_q, is_kept1_q, has_checksum1_q;
  logic [15:0]      offset1_q;
  logic [3:0]       count1_q;
  logic [3:0][15:0] ip_words_q, udp_words_q;
  logic [3:0][16:0] ip_lanes_q, udp_lanes_q;   // the carry on top
  logic [1:0][17:0] ip_pairs_q, udp_pairs_q;
  logic [16:0]      extra_q, extra3_q;         // protocol and length
  logic [18:0]      ip_sum_q, udp_sum_q;

  function automatic logic [16:0] lane(logic is_first, logic [16:0] sum, logic [15:0] word);
    return is_first ? {1'b0, word} : 17'(sum[15:0]) + 17'(word) + 17'(sum[16]);
  endfunction

  function automatic logic [17:0] pair(logic [16:0] left, logic [16:0] right);
    return 18'(left[15:0]) + 18'(right[15:0]) + 18'(left[16]) + 18'(right[16]);
  endfunction

  function automatic logic is_all_ones(logic [18:0] sum);
    return 17'(sum[15:0]) + 17'(sum[18:16]) == 17'h0_ffff;
  endfunction

  always_ff @(posedge clk_i) begin
    if (valid_i) begin
      ip_words_q      <= ip_words;
      udp_words_q     <= udp_words;
      is_first1_q     <= beat_q == '0;
      offset1_q       <= offset_q;
      count1_q        <= count;
      has_checksum1_q <= beat_q == 3'd5 ? data_i[15:0] != '0 : beat_q != '0 && has_checksum1_q;
      if (beat_q == 3'd4) begin
        extra_q    <= 17'(udp_bytes) + 17'd17;
        udp_left_q <= udp_bytes < 16'd6 ? '0 : udp_bytes - 16'd6;
      end else begin
        udp_left_q <= udp_left_q < 16'd8 ? '0 : udp_left_q - 16'd8;
      end
    end
    if (is_beat1_q) begin
      for (int unsigned i = 0; i < 4; i++) begin
        ip_lanes_q[i]  <= lane(is_first1_q, ip_lanes_q[i], ip_words_q[i]);
        udp_lanes_q[i] <= lane(is_first1_q, udp_lanes_q[i], udp_words_q[i]);
      end
    end
    for (int unsigned i = 0; i < 2; i++) begin
      ip_pairs_q[i]  <= pair(ip_lanes_q[2*i], ip_lanes_q[2*i+1]);
      udp_pairs_q[i] <= pair(udp_lanes_q[2*i], udp_lanes_q[2*i+1]);
    end
    extra3_q  <= extra_q;
    ip_sum_q  <= 19'(ip_pairs_q[0]) + 19'(ip_pairs_q[1]);
    udp_sum_q <= 19'(udp_pairs_q[0]) + 19'(udp_pairs_q[1]) + 19'(extra3_q);
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      is_beat1_q <= 1'b0;
      is_kept1_q <= 1'b0;
      end2_q     <= '0;
      end3_q     <= '0;
      end4_q     <= '0;
      beat_q     <= '0;
      frames_q   <= '0;
    end else begin
      is_beat1_q <= valid_i;
      is_kept1_q <= is_kept;
      end2_q     <= '{is_kept: is_kept1_q, bytes: offset1_q + 16'(count1_q),
                      has_checksum: has_checksum1_q};
      end3_q     <= end2_q;
      end4_q     <= end3_q;
      frames_q   <= frames_q + FramesWidth'(is_kept) - FramesWidth'(take && last_o);
      if (valid_i) beat_q <= last_i ? '0 : beat_q == 3'd6 ? 3'd6 : beat_q + 1'b1;
    end
  end

  always_ff @(posedge clk_i) begin
    if (valid_i && !is_full) store[write_q[PlaceWidth-1:0]] <= {last_i, data_i};
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      write_q   <= '0;
      commit_q  <= '0;
      offset_q  <= '0;
      is_lost_q <= 1'b0;
    end else if (valid_i) begin
      offset_q  <= last_i ? '0 : offset_q + 16'd8;
      is_lost_q <= !last_i && (is_lost_q || is_full);
      if (is_kept) commit_q <= write_q + 1'b1;
      if (last_i && !is_kept) write_q <= commit_q;
      else if (!is_full) write_q <= write_q + 1'b1;
    end
  end

  // The verdict and length of each frame.
  logic is_sound, has_verdict;
  assign is_sound = is_all_ones(ip_sum_q) && (!end4_q.has_checksum || is_all_ones(udp_sum_q));
  fifo #(.Width(17), .Depth(Frames)) u_frames (
    .clk_i, .rst_ni, .valid_i(end4_q.is_kept), .ready_o(),
    .data_i({end4_q.bytes, is_sound}), .valid_o(has_verdict), .ready_i(take && last_o),
    .data_o({bytes_o, is_sound_o}), .level_o()
  );

  // Its beats: fetched from the store, and offered a cycle later.
  logic        is_read, is_moved, has_fetched_q, has_beat_q;
  logic [64:0] fetched_q;
  assign is_moved = has_fetched_q && (!has_beat_q || take);
  assign is_read  = read_q != commit_q && (!has_fetched_q || is_moved);
  assign valid_o  = has_beat_q && has_verdict;
  assign take     = valid_o && ready_i;

  always_ff @(posedge clk_i) begin
    if (is_read) fetched_q <= store[read_q[PlaceWidth-1:0]];
    if (is_moved) {last_o, data_o} <= fetched_q;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      read_q        <= '0;
      has_fetched_q <= 1'b0;
      has_beat_q    <= 1'b0;
    end else begin
      if (is_read) read_q <= read_q + 1'b1;
      has_fetched_q <= is_read || (has_fetched_q && !is_moved);
      has_beat_q    <= is_moved || (has_beat_q && !take);
    end
  end

endmodule
