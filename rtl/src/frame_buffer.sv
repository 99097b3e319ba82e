// SPDX-License-Identifier: Apache-2.0
//
// Buffers whole frames between the MAC and the request parser. It never makes the MAC wait: a frame
// that does not fit is dropped whole, as is one that the MAC reports as broken; each is counted.
// The checksums of IPv4 (without options) and UDP are summed as a frame arrives, so the verdict is
// known before the parser reads the first byte.

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

  // Where the sums begin and end, in bytes of the frame.
  localparam int unsigned IpBegin = 14;
  localparam int unsigned SourceBegin = 26;  // the addresses, which UDP sums too
  localparam int unsigned UdpBegin = 34;

  logic [63:0] store [Beats];
  logic [PlaceWidth:0] write_q, commit_q, read_q;
  logic [15:0] offset_q;   // of the beat in its frame
  logic is_lost_q, is_full, is_end, is_kept, has_frame_room;
  logic [3:0] count;       // bytes of the beat

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

  // Sums of the words that belong to each, big endian, an odd byte with a zero behind it.
  logic [15:0] udp_bytes_q, udp_bytes;
  logic [31:0] ip_sum_q, udp_sum_q, ip_beat, udp_beat;
  logic        has_checksum_q, has_checksum;
  assign udp_bytes    = offset_q == 16'd32 ? {data_i[55:48], data_i[63:56]} : udp_bytes_q;
  assign has_checksum = offset_q == 16'd40 ? data_i[15:0] != '0 : has_checksum_q;
  always_comb begin
    ip_beat  = '0;
    udp_beat = '0;
    for (int unsigned i = 0; i < 8; i++) begin
      logic [15:0] at;
      logic [31:0] place;
      at    = offset_q + 16'(i);
      place = i % 2 == 0 ? {16'b0, data_i[8*i+:8], 8'b0} : 32'(data_i[8*i+:8]);
      if (!last_i || keep_i[i]) begin
        if (at >= 16'(IpBegin) && at < 16'(UdpBegin)) ip_beat = ip_beat + place;
        if (at >= 16'(SourceBegin) && (at < 16'd40 || at < 16'(UdpBegin) + udp_bytes)) begin
          udp_beat = udp_beat + place;
        end
      end
    end
  end

  function automatic logic is_all_ones(logic [31:0] sum);
    logic [16:0] once = 17'(sum[31:16]) + 17'(sum[15:0]);
    return once[15:0] + 16'(once[16]) == 16'hffff;
  endfunction

  // UDP's sum covers the protocol number, the length and the addresses as well.
  logic is_sound;
  assign is_sound = is_all_ones(ip_sum_q + ip_beat)
      && (!has_checksum || is_all_ones(udp_sum_q + udp_beat + 32'd17 + 32'(udp_bytes)));

  always_ff @(posedge clk_i) begin
    if (valid_i && !is_full) store[write_q[PlaceWidth-1:0]] <= data_i;
    if (valid_i) begin
      udp_bytes_q    <= udp_bytes;
      has_checksum_q <= has_checksum;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      write_q   <= '0;
      commit_q  <= '0;
      offset_q  <= '0;
      is_lost_q <= 1'b0;
      ip_sum_q  <= '0;
      udp_sum_q <= '0;
    end else if (valid_i) begin
      ip_sum_q  <= last_i ? '0 : ip_sum_q + ip_beat;
      udp_sum_q <= last_i ? '0 : udp_sum_q + udp_beat;
      offset_q  <= last_i ? '0 : offset_q + 16'd8;
      is_lost_q <= !last_i && (is_lost_q || is_full);
      if (is_kept) commit_q <= write_q + 1'b1;
      if (last_i && !is_kept) write_q <= commit_q;
      else if (!is_full) write_q <= write_q + 1'b1;
    end
  end

  // The verdict and length of each frame, and its beats.
  logic [15:0] read_offset_q;
  logic        take;
  fifo #(.Width(17), .Depth(Frames)) u_frames (
    .clk_i, .rst_ni, .valid_i(is_kept), .ready_o(has_frame_room),
    .data_i({offset_q + 16'(count), is_sound}),
    .valid_o, .ready_i(take && last_o), .data_o({bytes_o, is_sound_o}), .level_o()
  );
  assign data_o = store[read_q[PlaceWidth-1:0]];
  assign last_o = read_offset_q + 16'd8 >= bytes_o;
  assign take   = valid_o && ready_i;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      read_q        <= '0;
      read_offset_q <= '0;
    end else if (take) begin
      read_q        <= read_q + 1'b1;
      read_offset_q <= last_o ? '0 : read_offset_q + 16'd8;
    end
  end

endmodule
